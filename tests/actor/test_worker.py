"""One actor in this process, against a real learner host; more of its life is in ``tests/e2e``."""

from __future__ import annotations

import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor.sampling.guard import guard_envs
from actor.stat import ActorCounters
from actor.worker import Actor, build_agreed_parts, main
from common.config.actor_config import ActorConfig
from common.data import Array, Column, Schema
from common.errors import CrossborderError, LearnerUnreachableError, PluginError, SchemaMismatchError
from common.lanes.lanes import Busy
from common.lanes.plain_lanes import PlainLanes
from common.settings import validate
from common.wire.rpc import StoppingError
from common.wire.trust import Trust
from learner.loop.server import LearnerServer
from learner.shared.actor_table import ActorState
from tests.cable import Cable
from tests.conftest import PATIENCE, MakeConfig, wait_for
from tests.conftest import free_port as find_free_port
from tests.parts import PACED, CountingEnv, counting_schema

SCHEMA = counting_schema()
PARTS = {"env": {"target": "tests.parts:CountingEnv"}, "agent": {"target": "tests.parts:CheckingAgent"}}


@pytest.fixture
def free_port() -> int:
    """A port where nobody listens, also a little later."""
    return find_free_port()


def config(**changes: object) -> ActorConfig:
    return validate(ActorConfig, {**PARTS, **changes})


def no_end(error: CrossborderError) -> int:
    raise AssertionError(f"the process would end: {error}")


def test_an_actor_that_is_told_to_stop_hands_over_all_its_items(make_config: MakeConfig) -> None:
    with LearnerServer(make_config(push={"n_buffer": 64})) as server, ThreadPoolExecutor(1) as pool:
        actor = Actor(server.ingest.address, PATIENCE, Trust(), no_end)
        running = pool.submit(actor.run)
        wait_for(lambda: server.actor_table["env_steps"][0] > 200, "it acts")
        actor.stop()
        stat = running.result(PATIENCE)
        assert (stat.actor_id, stat.env_steps) == (0, server.actor_table["env_steps"][0])
        assert stat.duration > 0
        assert server.buffer.inserted == stat.env_steps


class LostEnv(CountingEnv):
    """Loses its simulator after 50 steps, when its actor has been told to stop."""

    reached, told = threading.Event(), threading.Event()
    left = 50

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if not self.left:
            self.reached.set()
            assert self.told.wait(PATIENCE)
            raise ConnectionResetError("its process has ended")
        self.left -= 1
        return super().step(action)


def test_an_environment_that_is_lost_while_its_actor_ends_is_not_rebuilt_and_all_its_steps_are_handed_over(
    make_config: MakeConfig,
) -> None:
    parts = make_config(env={"target": "tests.actor.test_worker:LostEnv"}, push={"n_buffer": 64, "flush_seconds": None})
    with LearnerServer(parts) as server, ThreadPoolExecutor(1) as pool:
        actor = Actor(server.ingest.address, PATIENCE, Trust(), no_end)
        running = pool.submit(actor.run)
        assert LostEnv.reached.wait(PATIENCE)
        actor.stop()
        LostEnv.told.set()
        assert running.result(PATIENCE).env_steps == 50
        assert server.buffer.inserted == 50
        assert server.actor_table["env_rebuilds"][0] == 0


LOST = re.compile(r"[1-9]\d* rows were not acknowledged before the end, and may be lost")


def test_an_actor_that_gives_its_learner_up_says_how_many_rows_it_had(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with LearnerServer(make_config(env=PACED)) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(Actor(server.ingest.address, 0.5, Trust(), no_end).run)
        wait_for(lambda: server.buffer.inserted > 20, "rows come")
        server.ingest.leave()
        assert isinstance(running.exception(PATIENCE), LearnerUnreachableError)
    assert LOST.search(caplog.text), caplog.text


def test_an_actor_whose_environment_fails_while_its_learner_is_away_says_how_many_rows_it_had(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.worker.FINISH_SECONDS", 0.5)
    env = {**PACED, "target": "tests.parts:FailingEnv", "params": {"marker": str(tmp_path / "failed")}}
    with (
        LearnerServer(make_config(env=env)) as server,
        Cable(server.ingest.address) as cable,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(Actor(cable.address, PATIENCE, Trust(), no_end).run)
        wait_for(lambda: server.buffer.inserted > 20, "rows come")
        cable.cut()
        assert str(running.exception(PATIENCE)) == "once only"
        server.learner.life.is_followed = True  # The learner does not wait for this actor.
    assert LOST.search(caplog.text), caplog.text


def test_an_actor_acts_without_the_wrappers_of_other_actors(make_config: MakeConfig) -> None:
    one_step = {"target": "gymnasium.wrappers:TimeLimit", "params": {"max_episode_steps": 1}, "actors": [3]}
    env = {"target": "tests.parts:CountingEnv", "wrappers": [one_step]}
    with LearnerServer(make_config(env=env)) as server, ThreadPoolExecutor(1) as pool:
        actor = Actor(server.ingest.address, PATIENCE, Trust(), no_end)
        running = pool.submit(actor.run)
        wait_for(lambda: server.control.episodes > 2, "it has finished episodes")
        actor.stop()
        running.result(PATIENCE)
        assert server.control.length_mean > 1


def test_a_worker_whose_parent_ends_before_it_gives_it_work_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actor.child_main.setup_logging", lambda form: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_an_actor_that_is_stopped_before_it_has_found_its_learner_stops_looking(free_port: int) -> None:
    actor = Actor(f"127.0.0.1:{free_port}", 100 * PATIENCE, Trust(), no_end)
    actor.stop()
    with pytest.raises(StoppingError):
        actor.run()


def test_an_actor_that_finds_no_learner_says_so(free_port: int) -> None:
    with pytest.raises(LearnerUnreachableError):
        Actor(f"127.0.0.1:{free_port}", 0.0, Trust(), no_end).run()


def test_parts_are_built_for_each_environment_of_the_actor() -> None:
    parts = build_agreed_parts(config(envs_per_actor=3), SCHEMA, seed=5, epsilon=0.5)
    assert isinstance(parts.lanes, PlainLanes)
    assert len({id(env) for env in parts.lanes.envs}) == 3
    assert (parts.agent.seed, parts.agent.epsilon) == (5, 0.5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "schema", "kind", "message"),
    [
        ({}, SCHEMA.plus(Column("more", "<f4")), SchemaMismatchError, "expects more <f4"),
        ({"agent": {"target": "no_such:Agent"}}, SCHEMA, PluginError, "no_such"),
        (
            {"env": {"target": "gymnasium:make", "params": {"id": "FrozenLake-v1"}, "frame_stack": 2}},
            SCHEMA,
            PluginError,
            "what the learner names cannot be built here: env.frame_stack: expected observations of Box leaves",
        ),
    ],
    ids=["other rows", "not installed", "impossible settings"],
)
def test_parts_that_are_not_those_of_the_learner_are_refused(
    changes: dict[str, object], schema: Schema, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        build_agreed_parts(config(**changes), schema, seed=0, epsilon=0.0)


def test_a_guarded_environment_is_rebuilt_from_its_configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    marker = tmp_path_factory.mktemp("failing") / "failed"
    env = {"target": "tests.parts:FailingEnv", "params": {"marker": str(marker), "at": 1}, "rebuilds_per_minute": 1}
    failing, counters = config(env=env), ActorCounters()
    parts = build_agreed_parts(failing, SCHEMA, seed=0, epsilon=0.0)
    assert parts.lanes is not None
    guard_envs(parts.lanes, failing.env, counters, Busy(), threading.Event())
    parts.lanes.reset(seed=7)
    parts.lanes.observe()
    outcome = parts.lanes.step(np.ones(1, np.int64))
    assert outcome.taken is not None
    assert outcome.taken.tolist() == [False]
    parts.lanes.reset(seed=8)
    assert np.asarray(parts.lanes.observe()).tolist() == [[8, 1, 0]]
    assert counters.env_rebuilds == 1


def test_an_actor_that_refuses_the_learners_code_leaves_and_frees_its_id_at_once(host: LearnerServer) -> None:
    actor = Actor(host.ingest.address, PATIENCE, Trust(allow=("nothing.of.the.learners",)), no_end)
    with pytest.raises(PluginError, match="the learner names code that is not allowed"):
        actor.run()
    wait_for(lambda: host.actor_table["state"][0] == ActorState.LEFT, "it has said goodbye")
