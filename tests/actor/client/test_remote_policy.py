"""The rows of lanes whose policy is remote, beside those of the same lanes with a local policy, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from actor.client.acting_session import ActingSession
from actor.client.remote_policy import RemotePolicy, Telling
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.config.actor_config import ActorConfig
from common.data import Array
from common.envs.pettingzoo import SeatsEnv
from common.lanes.building import lanes_of
from common.lanes.lanes import Busy, EnvKeeper, Lanes
from common.parts import Parts, row_schema
from common.settings import validate
from common.wire.acting_payloads import Description
from common.wire.trust import ServiceTrust
from tests.actor.acting import Kept, act, assert_same, env_config, limited, make_parts, together
from tests.conftest import PATIENCE
from tests.crossborder.serving.services import Service
from tests.crossborder.serving.test_recording_player import FIRST_MODEL, RunService
from tests.parts import CountingEnv
from tests.seats import Crowd

SEED, ROUNDS = 11, 60
EVERY = [None, *AutoresetMode]


def act_remotely(envs: Any, keeper: EnvKeeper | None, **env: Any) -> tuple[Kept, ActorCounters]:
    """The rows that a service records of these environments, and the counters of the process that steps them."""
    asked = {"target": "tests.parts:CountingEnv", **env}
    config = validate(ActorConfig, {"env": asked, "agent": {"target": "tests.parts:CheckingLaneAgent"}})
    run = RunService(config, [FIRST_MODEL])
    with Service(run.player, seed=SEED) as service:
        session = ActingSession(service.places.address, ServiceTrust(), PATIENCE, threading.Event())
        session.describe()
        lanes, counters = lanes_of(envs, config.env), ActorCounters()
        keep(lanes, keeper)
        description = Description(lanes.spec)
        session.require_fit(description, lanes.n, lanes.name)
        policy = RemotePolicy(session, description, lanes, None)
        rows, telling = row_schema(lanes.spec), Telling(policy)
        parts = Parts(policy, rows, lanes.spec, lanes.spec, rows, lanes=lanes)
        sampler = Sampler(parts, counters, session.open(lanes.n), records=telling)
        for _ in range(ROUNDS):
            sampler.sample_and_push(policy, telling)
        assert session.close(policy.last_step(), PATIENCE) == 0
    assert service.error is None
    run.player.flush()
    assert run.counters.env_steps == counters.env_steps
    return run.rows, counters


def keep(lanes: Lanes | None, keeper: EnvKeeper | None) -> None:
    if keeper is not None:
        assert lanes is not None
        lanes.keep(keeper)


def assert_same_rows(make: Callable[[], Any], n: int, keeper: EnvKeeper | None = None, **env: Any) -> None:
    parts = make_parts(make(), config=env_config(**env))
    keep(parts.lanes, keeper)
    local, counters = act(parts, ROUNDS, seed=SEED)
    remote, counted = act_remotely(make(), keeper, **env)
    for lane in range(n):
        assert_same(remote.lane(lane), local.lane(lane))
    assert counted.env_steps == counters.env_steps
    assert counted.take_episodes() == counters.take_episodes()


@pytest.mark.parametrize("mode", EVERY)
def test_rows_of_lanes_whose_episodes_end_in_different_rounds(mode: AutoresetMode | None) -> None:
    assert_same_rows(lambda: together(limited(), mode), 3)


class Corrected(CountingEnv):
    """Somebody takes another action at each third step."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"intervene_action": (action + 1) % 3} if self._step % 3 == 0 else {}
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP])
def test_rows_in_which_somebody_else_has_acted(mode: AutoresetMode | None) -> None:
    def make() -> Any:
        return together([Corrected(), CountingEnv()], mode)

    assert_same_rows(make, 2, intervention="intervene_action")


CROWD: dict[str, Any] = {"target": "common.envs.pettingzoo:make", "params": {"id": "tests.seats:Crowd"}}


@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_agents_of_whom_some_come_later_or_leave_before_the_others(groups: int) -> None:
    assert_same_rows(lambda: SeatsEnv([Crowd() for _ in range(groups)]), 4 * groups, **CROWD)


class Raising(Crowd):
    def step(self, actions: Any) -> Any:
        if self._game == 3 and self._step == 3:
            raise RuntimeError("lost")
        return super().step(actions)


class Keeper:
    """Replaces an environment by another one."""

    def __init__(self) -> None:
        self.busy, self.replaced = Busy(), 0

    def replace(self, env: Any, error: BaseException) -> Any:
        self.replaced += 1
        return SeatsEnv([Crowd()])


def test_rows_of_agents_whose_environment_raises() -> None:
    keeper = Keeper()
    assert_same_rows(lambda: SeatsEnv([Raising()]), 4, keeper, **CROWD)
    assert keeper.replaced == 2, "of the local lanes, and of the remote ones"
