"""Another process goes on in the middle of the episodes: here another sampler with environments of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation

from actor.resumable import ResumableSampler
from actor.stat import ActorCounters
from common.atari import make
from common.data import Array, Items, Snapshot
from common.envs import Env, box_observations
from common.parts import Lane
from common.processors import NStep
from tests.actor.test_sampler import Kept
from tests.parts import CountingEnv, Goals

NEW_SEED = 99


class Acting:
    """Takes random actions, whatever it sees; its generator belongs to the agent, not to the sampler."""

    def __init__(self, env: Env) -> None:
        self._space = env.action_space
        self._space.seed(0)

    def sample(self, obs: Array) -> Array:
        return np.array([self._space.sample() for _ in obs])


class Scene:
    """Two environments, and what comes of them."""

    def __init__(self, make_env: Callable[[], Env], seed: int = 5) -> None:
        self.envs = [box_observations(make_env()) for _ in range(2)]
        self.counters, self.kept = ActorCounters(), Kept()
        self.sampler = ResumableSampler([Lane(env, NStep(3)) for env in self.envs], self.counters, seed)

    def act(self, agent: Any, rounds: int) -> list[Items]:
        before = len(self.kept.pushed)
        for _ in range(rounds):
            self.sampler.sample_and_push(agent, self.kept)
        return self.kept.pushed[before:]

    def state(self) -> Snapshot:
        kept = self.sampler.state()
        return Snapshot(json.loads(json.dumps(kept.values)), kept.arrays)


def cartpole() -> Env:
    return gymnasium.make("CartPole-v1")


ENVS: dict[str, Callable[[], Env]] = {
    "cartpole": cartpole,
    "pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "half-cheetah": lambda: gymnasium.make("HalfCheetah-v5"),
    "pong": lambda: make("ALE/Pong-v5"),
    "goals": Goals,
}


@pytest.mark.parametrize("rounds", [1, 10, 43])
@pytest.mark.parametrize("make_env", ENVS.values(), ids=ENVS)
def test_episodes_go_on_where_they_were(
    make_env: Callable[[], Env], rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    alone, resumed = Scene(make_env), Scene(make_env, NEW_SEED)
    agent = Acting(alone.envs[0])
    alone.act(agent, rounds)
    resumed.sampler.restore(alone.state())
    assert resumed.kept.pushed == [], "what is played again is not pushed again"
    there = alone.act(agent, 60)
    agent = Acting(alone.envs[0])
    agent.sample(np.empty(2 * rounds))
    np.testing.assert_equal(resumed.act(agent, 60), there)
    assert resumed.counters.state() == alone.counters.state()
    assert caplog.messages == []


class Forgetful(CountingEnv):
    """Counts from the beginning of its process, so no other process comes to where it was."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return super().step(int(self._obs()[1] + self._obs()[2]) % 3)


@pytest.mark.parametrize("rounds", [10, 14], ids=["amid an episode", "between episodes"])
def test_an_environment_that_does_not_do_the_same_again_begins_anew_with_a_warning(
    rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    alone, resumed = Scene(Forgetful), Scene(Forgetful, NEW_SEED)
    alone.act(Acting(alone.envs[0]), rounds)
    resumed.sampler.restore(alone.state())
    assert [message.partition(" does not do the same again")[0] for message in caplog.messages] == [
        "environment 0",
        "environment 1",
    ]
    resumed.act(Acting(alone.envs[0]), 3)
    assert [env.seeds[-1] for env in resumed.envs] == [NEW_SEED, NEW_SEED + 1]  # type: ignore[attr-defined]
    assert resumed.counters.env_steps == 2 * (rounds + 3)
    assert dict(resumed.counters.state()["open"]) == {0: (6.0, 3), 1: (6.0, 3)}


def test_an_environment_whose_wrapper_remembers_more_than_its_episode_begins_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def normalized() -> Env:
        return NormalizeObservation(cartpole())

    alone, resumed = Scene(normalized), Scene(normalized, NEW_SEED)
    agent = Acting(alone.envs[0])
    while alone.counters.return_mean() == 0.0:  # In the first episode there is nothing yet to remember.
        alone.act(agent, 1)
    alone.act(agent, 20)
    resumed.sampler.restore(alone.state())
    assert "does not do the same again" in caplog.text


def test_an_episode_too_long_to_be_kept_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.resumable.MAX_STEPS", 20)
    alone, resumed = Scene(ENVS["pendulum"]), Scene(ENVS["pendulum"], NEW_SEED)
    agent = Acting(alone.envs[0])
    alone.act(agent, 19)
    resumed.sampler.restore(alone.state())
    assert caplog.messages == []
    alone.act(agent, 1)
    Scene(ENVS["pendulum"], NEW_SEED).sampler.restore(alone.state())
    assert len(caplog.messages) == 2
