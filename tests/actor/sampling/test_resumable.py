"""Another process goes on in the middle of the episodes: here another sampler with environments of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation

from actor.sampling.resumable import ResumableSampler, TapedEnv
from actor.stat import ActorCounters
from common.data import Array, Column, Items, Schema, Snapshot
from common.envs.atari import make
from common.errors import PluginError
from common.interfaces import EnvSpec, Step, StepProcessor
from common.lanes.building import Env, lanes_of
from common.parts import Parts
from common.spaces import flatten, to_columns
from tests.actor.acting import Kept, env_config, make_parts
from tests.actor.sampling.test_item_maker import Pairs
from tests.common.lanes.test_lanes import answers
from tests.parts import CheckingAgent, CountingEnv, Goals

NEW_SEED = 99


class Random(CheckingAgent):
    """Takes random actions, whatever it sees; its generator belongs to the agent, not to the sampler."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec, seed=0, epsilon=0.0, device="cpu")
        self._space = spec.action_space
        self._space.seed(0)
        self.begun: list[list[bool]] = []

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self.begun.append(begins.tolist())

    def sample(self, obs: Any) -> Any:
        n = len(next(iter(to_columns("", obs).values())))
        drawn: list[Any] = [flatten(self._space, self._space.sample()) for _ in range(n)]
        if isinstance(drawn[0], dict):
            return {path: np.stack([action[path] for action in drawn]) for path in drawn[0]}
        return np.stack(drawn)


class Scene:
    """Environments, by default two, and what comes of them."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        seed: int = 5,
        processor: Callable[[], StepProcessor] | None = None,
        frames: int = 1,
        n: int = 2,
    ) -> None:
        self.envs = [make_env() for _ in range(n)]
        self.counters, self.kept = ActorCounters(), Kept()
        config = env_config(frame_stack=frames)
        processors = [processor() for _ in range(n)] if processor else []
        self.parts = make_parts(list(self.envs), Random, processors=processors, config=config)
        self.sampler = ResumableSampler(self.parts, self.counters, seed)

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


class Nested(Goals):
    """Takes nested actions too."""

    action_space: Any = gymnasium.spaces.Dict(
        {"move": gymnasium.spaces.Discrete(2), "force": gymnasium.spaces.Box(-1, 1, (3,), np.float32)}
    )

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(int(action["move"]))
        return obs, reward + float(action["force"].sum()), terminated, truncated, info


class Clipping(gymnasium.Env[Array, Array]):
    """Has actions of 64 bits, and clips each one in place."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float64)
        self._total = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._total = self.np_random.normal(size=3)
        return self._total.astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._total = self._total / 3 + action / 3
        np.clip(action, -0.5, 0.5, out=action)
        return self._total.astype(np.float32), float(self._total.sum()), bool(self._total[0] > 0.3), False, {}


ENVS: dict[str, Callable[[], Env]] = {
    "cartpole": cartpole,
    "pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "half-cheetah": lambda: gymnasium.make("HalfCheetah-v5"),
    "pong": lambda: make("ALE/Pong-v5"),
    "goals": Goals,
    "nested": Nested,
    "clipping": Clipping,
}


SLOW_ENVS = {"half-cheetah", "pong"}


@pytest.mark.parametrize(
    ("name", "rounds"),
    [(name, rounds) for name in ENVS for rounds in (1, 10, 43) if name not in SLOW_ENVS or rounds == 43],
)
def test_episodes_go_on_where_they_were(name: str, rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    make_env = ENVS[name]
    alone, resumed = Scene(make_env), Scene(make_env, NEW_SEED)
    agent = Random(alone.parts.spec)
    alone.act(agent, rounds)
    resumed.sampler.restore(alone.state())
    assert resumed.kept.pushed == [], "what is played again is not pushed again"
    there = alone.act(agent, 60)
    agent = Random(alone.parts.spec)
    agent.sample(np.empty((2 * rounds, 1)))
    np.testing.assert_equal(resumed.act(agent, 60), there)
    assert resumed.counters.state() == alone.counters.state()
    assert caplog.messages == []


@pytest.mark.parametrize("rounds", [3, 12, 13])
def test_step_processors_and_stacks_of_frames_go_on_where_they_were(rounds: int) -> None:
    for options in ({"processor": Pairs}, {"frames": 3}):
        alone, resumed = Scene(cartpole, **options), Scene(cartpole, NEW_SEED, **options)
        agent = Random(alone.parts.spec)
        seen: list[Array] = []
        alone.act(agent, rounds)
        resumed.sampler.restore(alone.state())
        agent.sample = watched(agent.sample, seen)  # type: ignore[assignment, method-assign]
        there = alone.act(agent, 20)
        agent = Random(alone.parts.spec)
        agent.sample(np.empty((2 * rounds, 1)))
        again: list[Array] = []
        agent.sample = watched(agent.sample, again)  # type: ignore[assignment, method-assign]
        np.testing.assert_equal(resumed.act(agent, 20), there)
        np.testing.assert_equal(again, seen)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_with_another_number_of_environments_those_of_both_go_on(before: int, after: int) -> None:
    alone, resumed = Scene(cartpole, frames=3, n=before), Scene(cartpole, NEW_SEED, frames=3, n=after)
    agent, seen = Random(alone.parts.spec), list[Array]()
    agent.sample = watched(agent.sample, seen)  # type: ignore[assignment, method-assign]
    alone.act(agent, 5)
    resumed.sampler.restore(alone.state())
    resumed.act(agent, 1)
    last, first = seen[-2:]
    np.testing.assert_equal(first[:2, :2], last[:2, 1:], "the frames before the resume are the older ones after it")


class Actions:
    """Makes an item of each action."""

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column("sums", "<f4", (3,)),))

    def reset(self) -> None:
        self._sum = np.zeros((1, 3), np.float32)

    def process(self, step: Step) -> Items | None:
        self._sum = self._sum + step.action
        return {"sums": self._sum}


def test_step_processors_see_each_action_again_as_it_was_chosen() -> None:
    alone, resumed = Scene(Clipping, processor=Actions), Scene(Clipping, NEW_SEED, processor=Actions)
    agent = Random(alone.parts.spec)
    alone.act(agent, 10)
    resumed.sampler.restore(alone.state())
    there = alone.act(agent, 20)
    agent = Random(alone.parts.spec)
    agent.sample(np.empty((20, 1)))
    np.testing.assert_equal(resumed.act(agent, 20), there)


def watched(sample: Callable[[Any], Any], seen: list[Array]) -> Callable[[Any], Any]:
    def watching(obs: Array) -> Any:
        seen.append(obs.copy())
        return sample(obs)

    return watching


def test_an_agent_is_not_told_that_a_resumed_episode_begins() -> None:
    alone, resumed = Scene(cartpole), Scene(cartpole, NEW_SEED)
    alone.act(Random(alone.parts.spec), 3)
    resumed.sampler.restore(alone.state())
    agent = Random(alone.parts.spec)
    resumed.act(agent, 1)
    assert agent.begun == [[False, False]]
    assert resumed.kept.column("first").tolist() == [False, False]


def test_the_lanes_of_a_vector_environment_begin_new_episodes(caplog: pytest.LogCaptureFixture) -> None:
    def sampler() -> tuple[ResumableSampler, Parts, Kept]:
        parts = make_parts(SyncVectorEnv([cartpole, cartpole], autoreset_mode="SameStep"), Random)
        return ResumableSampler(parts, ActorCounters(), 5), parts, Kept()

    alone, parts, kept = sampler()
    for _ in range(10):
        alone.sample_and_push(parts.agent, kept)
    resumed, parts, kept = sampler()
    resumed.restore(alone.state())
    assert caplog.messages == ["a vector environment cannot be brought back: its 2 lanes begin new episodes"]
    resumed.sample_and_push(parts.agent, kept)
    assert kept.column("first").tolist() == [True, True]


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
def test_an_environment_that_returns_other_values_begins_a_new_episode_with_a_warning(
    rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    alone, resumed = Scene(Forgetful), Scene(Forgetful, NEW_SEED)
    alone.act(Random(alone.parts.spec), rounds)
    resumed.sampler.restore(alone.state())
    assert [message.partition(" returned other values than before")[0] for message in caplog.messages] == [
        "environment 0",
        "environment 1",
    ]
    resumed.act(Random(alone.parts.spec), 3)
    assert [env.seeds[-1] for env in resumed.envs] == [NEW_SEED, NEW_SEED + 1]  # type: ignore[attr-defined]
    assert resumed.counters.env_steps == 2 * (rounds + 3)
    resumed.act(Random(alone.parts.spec), 10)
    assert resumed.counters.take_episodes()[0][0] == 21.0, "the steps before are no part of the new episode"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.ones(3, requires_grad=True), 0.0), r"observation: expected float32 \[3\], found a Tensor that numpy"),
        (([1, [2, 3]], 0.0), r"observation: expected float32 \[3\], found a list of parts with different shapes"),
        ((np.zeros(3, np.float32), 10**400), "reward, terminated or truncated: int too large to convert"),
    ],
    ids=["a tensor with gradients", "parts of different shapes", "a huge reward"],
)
def test_a_value_that_numpy_cannot_read_is_refused_by_name(given: tuple[Any, Any], message: str) -> None:
    class Odd(CountingEnv):
        def step(self, action: Any) -> Any:
            return *given, *super().step(action)[2:]

    lanes = lanes_of(TapedEnv(Odd()))
    actions = answers(lanes.observe())
    with pytest.raises(PluginError, match=message):
        lanes.step(actions)


def test_an_environment_whose_wrapper_remembers_former_episodes_begins_a_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def normalized() -> Env:
        return NormalizeObservation(cartpole())

    alone, resumed = Scene(normalized), Scene(normalized, NEW_SEED)
    agent = Random(alone.parts.spec)
    while not alone.counters.episode_record():  # In the first episode there is nothing yet to remember.
        alone.act(agent, 1)
    alone.act(agent, 20)
    resumed.sampler.restore(alone.state())
    assert "returned other values than before" in caplog.text


def test_an_episode_too_long_to_be_kept_is_replaced_by_a_new_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actor.sampling.resumable.MAX_STEPS", 20)
    alone, resumed = Scene(ENVS["pendulum"]), Scene(ENVS["pendulum"], NEW_SEED)
    agent = Random(alone.parts.spec)
    alone.act(agent, 19)
    resumed.sampler.restore(alone.state())
    assert caplog.messages == []
    alone.act(agent, 1)
    Scene(ENVS["pendulum"], NEW_SEED).sampler.restore(alone.state())
    assert [message.partition(", which")[0] for message in caplog.messages] == [
        f"environment {j} begins a new episode: its episode had 20 steps or more" for j in range(2)
    ]
