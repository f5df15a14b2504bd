from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import Autoreset, TimeLimit

from actor.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array, Column, Items, Schema
from common.envs import Env, spec_of
from common.errors import PluginError
from common.interfaces import EnvSpec, Step, StepProcessor
from common.parts import Lane
from common.processors import NStep, OneStep
from examples.own_processor import ScaledReward
from tests.parts import CheckingAgent, CountingEnv, check_rows

Wrap = Callable[[Env], Env]
BARE_AND_AUTORESET = pytest.mark.parametrize("wrap", [lambda env: env, Autoreset], ids=["bare", "autoreset"])


class Kept:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.pushed: list[Items] = []

    def push(self, items: Items) -> None:
        self.pushed.append(items)

    def column(self, name: str) -> Array:
        return np.concatenate([items[name] for items in self.pushed])


class SeedWatchingEnv(CountingEnv):
    """Remembers the seed of each reset."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


class Pairs:
    """Two steps of one episode make an item; a single one at the end of an episode makes none."""

    def __init__(self) -> None:
        self._first: Step | None = None

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column("episodes", "<f8", (2,)), Column("steps", "<f8", (2,))))

    def reset(self) -> None:
        self._first = None

    def process(self, step: Step) -> Items | None:
        if self._first is None:
            self._first = step
            return None
        first, self._first = self._first, None
        return {
            "episodes": np.array([[first.obs[2], step.obs[2]]]),
            "steps": np.array([[first.obs[1], step.obs[1]]]),
        }


def sample(
    env: Env | Sequence[Env],
    rounds: int,
    *,
    processor: Callable[[], StepProcessor] = OneStep,
    agent: Any = None,
    seed: int = 7,
) -> tuple[Kept, ActorCounters]:
    """Step one environment, or several, with a fresh sampler for this many rounds."""
    envs = [env] if isinstance(env, gymnasium.Env) else env
    sink, counters = Kept(), ActorCounters()
    sampler = Sampler([Lane(each, processor()) for each in envs], counters, seed)
    agent = agent or CheckingAgent(spec_of(envs[0]), seed=seed, epsilon=0.0, device="cpu")
    for _ in range(rounds):
        sampler.sample_and_push(agent, sink)
    return sink, counters


@BARE_AND_AUTORESET
def test_every_step_is_pushed_once_as_a_whole_transition_of_one_episode(wrap: Wrap) -> None:
    env = wrap(CountingEnv())
    sink, counters = sample(env, 50)
    items = {column.name: sink.column(column.name) for column in OneStep().schema(spec_of(env)).columns}
    assert OneStep().schema(spec_of(env)).count(items) == counters.env_steps == 50
    check_rows(items)
    assert items["obs"][0].tolist() == [7, 1, 0]
    # Consecutive within an episode; the next one begins after the observation that ended this one.
    done = (items["terminated"] | items["truncated"])[:-1]
    np.testing.assert_array_equal(np.diff(items["obs"][:, 1]), np.where(done, 2, 1))
    np.testing.assert_array_equal(np.diff(items["obs"][:, 2]), done)


@BARE_AND_AUTORESET
def test_the_true_last_observation_of_an_episode_is_kept(wrap: Wrap) -> None:
    sink, _ = sample(wrap(CountingEnv()), 30)
    done = sink.column("terminated") | sink.column("truncated")
    ends, episodes = sink.column("next_obs")[done], sink.column("obs")[done][:, 2]
    assert len(ends) >= 3
    np.testing.assert_array_equal(ends[:, 2], episodes)
    np.testing.assert_array_equal((ends[:, 1] - ends[:, 2]) % 7, 0)


@BARE_AND_AUTORESET
def test_termination_and_truncation_are_told_apart(wrap: Wrap) -> None:
    sink, _ = sample(wrap(CountingEnv()), 30)
    terminated, truncated = sink.column("terminated"), sink.column("truncated")
    episodes = sink.column("obs")[:, 2]
    assert episodes[terminated].tolist() == [0, 2]
    assert episodes[truncated].tolist() == [1, 3]


def test_a_time_limit_of_gymnasium_truncates() -> None:
    class Alternating:
        def sample(self, obs: Array) -> Array:
            return (obs[:, 3] < 0).astype(np.int64)

    env = gymnasium.make("CartPole-v1", max_episode_steps=5)
    sink, counters = sample(env, 12, agent=Alternating())
    env.close()
    assert np.flatnonzero(sink.column("truncated")).tolist() == [4, 9]
    assert not sink.column("terminated").any()
    assert counters.take_episodes() == ([5.0, 5.0], [5, 5], [])


@BARE_AND_AUTORESET
def test_only_the_first_reset_is_seeded(wrap: Wrap) -> None:
    env = SeedWatchingEnv()
    sample(wrap(env), 30, seed=123)
    assert len(env.seeds) >= 4
    assert env.seeds == [123] + [None] * (len(env.seeds) - 1)


def test_the_same_seed_lives_the_same_life_and_another_one_another() -> None:
    class Pushing:
        def sample(self, obs: Array) -> Array:
            return np.ones(len(obs), np.int64)

    lives = []
    for seed in (5, 5, 6):
        env = gymnasium.make("CartPole-v1")
        lives.append(sample(env, 40, agent=Pushing(), seed=seed)[0].column("obs"))
        env.close()
    np.testing.assert_array_equal(lives[0], lives[1])
    assert not np.array_equal(lives[0], lives[2])


@BARE_AND_AUTORESET
def test_the_memory_of_a_processor_never_crosses_an_episode(wrap: Wrap) -> None:
    sink, counters = sample(wrap(CountingEnv()), 60, processor=Pairs)
    episodes, steps = sink.column("episodes"), sink.column("steps")
    np.testing.assert_array_equal(episodes[:, 0], episodes[:, 1])
    np.testing.assert_array_equal(steps[:, 0] + 1, steps[:, 1])
    assert counters.env_steps == 60
    assert 20 < len(sink.pushed) <= 30


def test_a_step_that_makes_no_item_pushes_nothing_but_counts() -> None:
    sink, counters = sample(CountingEnv(), 1, processor=Pairs)
    assert sink.pushed == []
    assert counters.env_steps == 1


def test_returns_and_lengths_are_those_of_the_episodes() -> None:
    sink, counters = sample(CountingEnv(), 30)
    episodes, rewards = sink.column("obs")[:, 2], sink.column("reward")
    returns, lengths, _ = counters.take_episodes()
    assert len(returns) == 4
    assert returns == [float(rewards[episodes == episode].sum()) for episode in range(4)]
    assert lengths == [int((episodes == episode).sum()) for episode in range(4)]


def test_an_environment_that_reuses_its_observation_array_does_no_harm() -> None:
    class InPlace(CountingEnv):
        kept = np.zeros(3)

        def _obs(self) -> Array:
            self.kept[:] = super()._obs()
            return self.kept

    sink, _ = sample(InPlace(), 20)
    check_rows({name: sink.column(name) for name in sink.pushed[0]})


# Several environments.


@pytest.mark.parametrize("processor", [OneStep, NStep])
def test_each_of_several_environments_lives_as_it_would_alone(processor: Callable[[], StepProcessor]) -> None:
    def envs() -> list[Env]:
        return [TimeLimit(CountingEnv(), limit) for limit in (3, 5, 100)]  # Episodes end in different rounds.

    together, counters = sample(envs(), 40, processor=processor)
    assert counters.env_steps == 120
    tags = together.column("obs")[:, 0]
    returns: list[float] = []
    for j, env in enumerate(envs()):
        alone, own = sample(env, 40, processor=processor, seed=7 + j)
        for name in alone.pushed[0]:
            np.testing.assert_array_equal(together.column(name)[tags == 7 + j], alone.column(name))
        returns += own.take_episodes()[0]
    assert sorted(set(tags)) == [7, 8, 9]
    assert sorted(counters.take_episodes()[0]) == sorted(returns)


def test_a_round_of_transitions_is_pushed_as_one_in_the_order_of_the_environments() -> None:
    sink, _ = sample([CountingEnv() for _ in range(3)], 20)
    assert [items["obs"][:, 0].tolist() for items in sink.pushed] == [[7, 8, 9]] * 20
    check_rows({name: sink.column(name) for name in sink.pushed[0]})


def test_a_processor_that_derives_from_one_step_sees_every_step() -> None:
    sink, _ = sample([CountingEnv() for _ in range(3)], 10, processor=ScaledReward)
    assert sink.column("reward").tolist() == [1.0] * 30


def test_one_inference_acts_in_all_environments() -> None:
    class Watching(CheckingAgent):
        def sample(self, obs: Array) -> Array:
            asked.append(obs[:, 0].tolist())
            return super().sample(obs)

    asked: list[list[float]] = []
    agent = Watching(spec_of(CountingEnv()), seed=0, epsilon=0.0, device="cpu")
    sample([CountingEnv() for _ in range(3)], 4, agent=agent, seed=20)
    assert asked == [[20, 21, 22]] * 4


def test_environment_j_is_seeded_with_the_actors_seed_plus_j_and_once_only() -> None:
    envs = [SeedWatchingEnv() for _ in range(3)]
    sample(envs, 10, seed=123)
    assert [env.seeds for env in envs] == [[123, None], [124, None], [125, None]]


def test_an_agent_that_does_not_act_in_every_environment_is_refused() -> None:
    class Single:
        def sample(self, obs: Array) -> Array:
            return np.zeros(1, np.int64)

    with pytest.raises(PluginError, match=r"agent\.sample: expected actions for 3 observations, found 1"):
        sample([CountingEnv() for _ in range(3)], 1, agent=Single())


def test_time_in_environments_and_in_inference_is_told_apart_and_pushing_is_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Slow(CountingEnv):
        def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
            spend(10)
            return super().reset(**options)

        def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            spend(1)
            return super().step(action)

    class Thinking(CheckingAgent):
        def sample(self, obs: Array) -> Array:
            spend(100)
            return super().sample(obs)

    class Held(Kept):
        def push(self, items: Items) -> None:
            spend(1000)

    monkeypatch.setattr("actor.sampler.perf_counter", lambda: now)
    counters = ActorCounters()
    sampler = Sampler([Lane(Slow(), OneStep()) for _ in range(2)], counters, seed=7)
    for _ in range(3):
        sampler.sample_and_push(Thinking(spec_of(CountingEnv()), seed=7, epsilon=0.0, device="cpu"), Held())
    assert (counters.env_seconds, counters.inference_seconds) == (2 * 10 + 6 * 1, 3 * 100)
