from __future__ import annotations

import itertools
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset

from actor.sampling.guard import Guard
from actor.sampling.sampler import Sampler, spread
from actor.stat import ActorCounters
from common.agents.dqn import DQN
from common.data import Array, Column, Items, Schema
from common.errors import PluginError, SchemaMismatchError
from common.interfaces import Agent, EnvSpec, RowMap
from common.lanes.building import Env
from common.lanes.lanes import Busy
from common.lanes.plain_lanes import PlainLanes
from common.parts import SameColumns
from common.process.child import RestartPolicy
from common.wire.rpc import StoppingError
from tests.actor.acting import (
    Acts,
    Kept,
    KeptBatches,
    act,
    assert_same,
    counting,
    limited,
    make_parts,
    together,
)
from tests.parts import CheckingAgent, CountingEnv, check_rows, counting_action, expected_rows

Wrap = Callable[[Env], Env]
BARE_AND_AUTORESET = pytest.mark.parametrize("wrap", [lambda env: env, Autoreset], ids=["bare", "autoreset"])
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


class SeedWatchingEnv(CountingEnv):
    """Remembers the seed of each reset."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


# Rows of one environment.


@BARE_AND_AUTORESET
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_step_is_a_row_and_every_episode_ends_with_a_final_row(wrap: Wrap, size: int) -> None:
    sink, counters = act(make_parts([wrap(CountingEnv())]), 50, sink=KeptBatches(size), version=3)
    assert_same(sink.items(), expected_rows(7, 50, version=3))
    check_rows(sink.items())
    assert counters.env_steps == 50


@BARE_AND_AUTORESET
def test_only_the_first_reset_is_seeded(wrap: Wrap) -> None:
    env = SeedWatchingEnv()
    act(make_parts([wrap(env)]), 30, seed=123)
    assert len(env.seeds) >= 4
    assert env.seeds == [123] + [None] * (len(env.seeds) - 1)


def test_equal_seeds_give_equal_rows_and_other_seeds_give_other_rows() -> None:
    lives = []
    for seed in (5, 5, 6):
        parts = make_parts([gymnasium.make("CartPole-v1")], lambda s: Acts(s, lambda obs: np.ones(len(obs), int)))
        lives.append(act(parts, 40, seed=seed)[0].column("obs"))
        parts.close()
    np.testing.assert_array_equal(lives[0], lives[1])
    assert not np.array_equal(lives[0], lives[2])


def test_an_environment_that_reuses_its_observation_array_does_no_harm() -> None:
    class InPlace(CountingEnv):
        kept = np.zeros(3, np.float32)

        def _obs(self) -> Array:
            self.kept[:] = super()._obs()
            return self.kept

    assert_same(act(make_parts([InPlace()]), 20)[0].items(), expected_rows(7, 20))


# Many rounds in one call.


class Reusing(CountingEnv):
    """Writes all observations into one array, and clears each action that it gets."""

    action_space: Any = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__()
        self._kept = np.zeros(3, np.float32)

    def _obs(self) -> Array:
        self._kept[:] = super()._obs()
        return self._kept

    def step(self, action: Any) -> Any:
        assert action.tolist() == [self._step, 1], "the agent acted on another observation"
        action *= 0
        return super().step(counting_action(self._obs()))


class Varied(CountingEnv):
    """Its values have other types now and then."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._step % 4 == 0:
            return obs.tolist(), np.float32(reward), np.bool_(terminated), truncated, info
        return obs.astype(float), int(reward), terminated, int(truncated), info if self._step % 5 else Counter()


class Fragile(CountingEnv):
    """Raises in every eleventh step."""

    def step(self, action: Any) -> Any:
        if self._step % 11 == 0:
            raise ValueError("it broke")
        return super().step(action)


def _agent(spec: EnvSpec) -> Agent:
    if spec.action_space.shape:
        return Acts(spec, lambda obs: np.stack([obs[:, 1], np.ones(len(obs), np.float32)], 1))
    return CheckingAgent(spec, seed=7, epsilon=0.0, device="cpu")


def _sampler(make: Callable[[], Env]) -> tuple[Sampler, Agent, ActorCounters]:
    parts, counters = make_parts([make()], _agent), ActorCounters()
    assert parts.lanes is not None
    numbers = itertools.count(1)

    def build() -> Env:
        env = make()
        env.reset(seed=100 * next(numbers))
        return env

    parts.lanes.keep(Guard(build, RestartPolicy(1000), counters, Busy(), stopped=threading.Event()))
    return Sampler(parts, counters, seed=7), parts.agent, counters


@pytest.mark.parametrize("size", [5, 100])
@pytest.mark.parametrize("make", [CountingEnv, Reusing, Varied, Fragile])
def test_acting_for_a_time_gives_the_rows_of_single_rounds(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Env], size: int
) -> None:
    together, alone, lengths = KeptBatches(size), KeptBatches(size), list[int]()
    go_on = PlainLanes.go_on

    def watched(lanes: PlainLanes, sample: Any, keep: Any, *limits: Any) -> Any:
        def kept(seen: list[bytes], given: list[bytes], rewards: list[float]) -> None:
            lengths.append(len(rewards))
            keep(seen, given, rewards)

        return go_on(lanes, sample, kept, *limits)

    monkeypatch.setattr(PlainLanes, "go_on", watched)
    sampler, agent, counters = _sampler(make)
    while counters.env_steps < 500:
        sampler.act_for(0.002, agent, together, together.limits)
    sampler.flush(agent, together)
    assert max(lengths) >= 2, "several rounds were taken at once"
    sampler, agent, other = _sampler(make)
    while (other.env_steps, other.env_rebuilds) < (counters.env_steps, counters.env_rebuilds):
        sampler.sample_and_push(agent, alone)
    sampler.flush(agent, alone)
    assert_same(together.items(), alone.items())
    assert [len(items["lane"]) for items in together.pushed] == [len(items["lane"]) for items in alone.pushed]
    assert (counters.env_rebuilds, counters.take_episodes()) == (other.env_rebuilds, other.take_episodes())


class Late(CountingEnv):
    """From its fourth step on, it gives other values than it should."""

    changes: dict[str, Any] = {}  # noqa: RUF012 - the test's

    def step(self, action: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        found = dict(zip(names, super().step(action), strict=True))
        return tuple((found | self.changes).values()) if self._step > 4 else tuple(found.values())


def _repeat(times: int, function: Callable[..., None], *arguments: Any) -> None:
    for _ in range(times):
        function(*arguments)


FAULTS: list[dict[str, Any]] = [
    {"obs": np.zeros(2, np.float32)},
    {"obs": {"x": 1}},
    {"reward": None},
    {"reward": [1.0]},
    {"truncated": np.array([True, False])},
    {"terminated": "False"},
    {"terminated": float("nan")},
    {"info": None},
    {"more": 1},
]


@pytest.mark.parametrize("changes", FAULTS, ids=[str([*fault]) for fault in FAULTS])
def test_a_fault_among_many_rounds_is_refused_as_in_a_single_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(Late, "changes", changes)
    refusals = list[str]()
    for is_single in (False, True):
        sampler, agent, _ = _sampler(Late)
        sink = KeptBatches(100)
        act = sampler.sample_and_push if is_single else partial(sampler.act_for, 60.0, limits=sink.limits)
        with pytest.raises(PluginError) as refused:
            _repeat(10, act, agent, sink)
        refusals.append(re.sub(r"line \d+", "", str(refused.value)))
    assert refusals[0] == refusals[1]


def test_an_environment_whose_step_comes_to_nothing_is_not_stepped_again() -> None:
    taken = list[Any]()

    class Nothing(CountingEnv):
        def step(self, action: Any) -> Any:
            taken.append(action)
            return super().step(action) if len(taken) < 5 else None

    sampler, agent, _ = _sampler(Nothing)
    sink = KeptBatches(100)
    with pytest.raises(PluginError, match="step"):
        sampler.act_for(60.0, agent, sink, sink.limits)
    assert len(taken) == 5


@pytest.mark.parametrize("actions", [np.zeros(1), np.zeros((1, 1), int), np.zeros(2, int), [0]])
def test_a_wrong_action_among_many_rounds_is_refused_and_the_steps_before_it_are_kept(actions: Any) -> None:
    given = iter([np.array([1]), np.array([2]), np.array([0])])
    parts, counters, sink = make_parts([CountingEnv()], lambda s: Acts(s, lambda _: next(given, actions))), *_counted()
    sampler = Sampler(parts, counters, seed=7)
    with pytest.raises(PluginError, match=r"agent.sample: expected actions for 1 observations, int64 \[1\], found"):
        sampler.act_for(60.0, parts.agent, sink, sink.limits)
    sampler.flush(parts.agent, sink)
    assert_same(sink.items(), expected_rows(7, 3))
    assert counters.env_steps == 3


DISCRETE, GRID = gymnasium.spaces.Discrete(4, start=2), gymnasium.spaces.MultiDiscrete(np.array([[2, 3]]))
OUTSIDE: list[tuple[Any, Any, Any, str]] = [
    (gymnasium.spaces.Discrete(4), 3, 7, r"expected int64 \[1\] of 0 to 3, found int64 \[1\] 7"),
    (DISCRETE, np.int64(2), np.int64(1), r"expected int64 \[1\] of 2 to 5, found int64 \[1\] 1"),
    (GRID, np.array([[1, 2]]), np.array([[0, 3]]), r"expected int64 \[1, 1, 2\], found int64 \[1, 1, 2\] from 0 to 3"),
    (
        gymnasium.spaces.Dict(a=gymnasium.spaces.Tuple([DISCRETE, GRID])),
        {"a": (5, np.array([[0, 0]]))},
        {"a": (6, np.array([[0, 0]]))},
        r"leaf 'a/0': expected int64 \[1\] of 2 to 5, found int64 \[1\] 6",
    ),
]


@pytest.mark.parametrize(("space", "good", "bad", "message"), OUTSIDE, ids=["zero", "start", "grid", "inner"])
@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP])
def test_an_agent_that_fails_with_a_number_outside_its_space_names_the_environments_fault(
    space: Any, good: Any, bad: Any, message: str, mode: AutoresetMode | None
) -> None:
    class Wandering(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, gymnasium.spaces.Discrete(2)
        steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return good, {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return good if self.steps < 4 else bad, 0.0, False, False, {}

    dqn = partial(DQN, seed=0, epsilon=0.0, device="cpu", units=[8])
    sink, parts = KeptBatches(100), make_parts(together([Wandering()], mode), dqn)
    sampler = Sampler(parts, ActorCounters(), seed=7)
    with pytest.raises(PluginError, match=f"^env tests.parts:CountingEnv: observation: {message}; correct the space"):
        sampler.act_for(60.0, parts.agent, sink, sink.limits)
    sampler.flush(parts.agent, sink)
    assert len(sink.items()["reward"]) == 4, "the steps before are kept"


def test_an_agent_that_changes_its_observations_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actor.sampling.sampler.WATCH_SECONDS", 0.0)
    calls = itertools.count(1)

    def sample(obs: Array) -> Array:
        actions: Array = ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)
        if next(calls) > 3:
            obs *= 2
        return actions

    parts, sink = make_parts([CountingEnv()], lambda s: Acts(s, sample)), KeptBatches(100)
    sampler = Sampler(parts, ActorCounters(), seed=7)
    with pytest.raises(PluginError, match=r"sample\(\) changed the observations it was given"):
        _repeat(10, sampler.sample_and_push, parts.agent, sink)
    assert next(calls) == 5


def test_an_error_of_the_network_is_not_blamed_on_an_observation() -> None:
    class Wandering(gymnasium.Env[Any, Any]):
        observation_space, action_space = DISCRETE, gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

    def sample(_: Any) -> Array:
        raise StoppingError("told to stop while waiting for an action")

    with pytest.raises(StoppingError):
        act(make_parts([Wandering()], lambda s: Acts(s, sample)), 1)


def test_an_agents_own_index_error_is_raised_as_it_is() -> None:
    table: list[Array] = []
    parts = make_parts([CountingEnv()], lambda s: Acts(s, lambda _: table[1]))
    with pytest.raises(IndexError):
        act(parts, 1)


def _counted() -> tuple[ActorCounters, KeptBatches]:
    return ActorCounters(), KeptBatches(100)


def test_an_environment_is_busy_during_its_steps_and_at_no_other_time_while_many_rounds_are_taken() -> None:
    class Watching(CountingEnv):
        def step(self, action: Any) -> Any:
            assert lanes.busy.since < math.inf
            return super().step(action)

    def act_idle(obs: Array) -> Any:
        assert lanes.busy.since == math.inf
        return ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)

    parts = make_parts([Watching()], lambda s: Acts(s, act_idle))
    assert parts.lanes is not None
    lanes, (counters, sink) = parts.lanes, _counted()
    Sampler(parts, counters, seed=7).act_for(0.05, parts.agent, sink, sink.limits)
    assert counters.env_steps > 10


def test_a_time_limit_of_gymnasium_truncates() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=5)
    sink, counters = act(make_parts([env], lambda s: Acts(s, lambda obs: (obs[:, 3] < 0).astype(np.int64))), 12)
    env.close()
    rows = sink.items()
    assert np.flatnonzero(rows["truncated"][~rows["final"]]).tolist() == [4, 9]
    assert not rows["terminated"].any()
    assert counters.take_episodes() == ([5.0, 5.0], [5, 5], [])


def test_returns_and_lengths_are_those_of_the_episodes() -> None:
    sink, counters = act(make_parts([CountingEnv()]), 30)
    rows = sink.items()
    episodes, steps = rows["obs"][:, 2], ~rows["final"]
    returns, lengths, _ = counters.take_episodes()
    assert returns == [float(rows["reward"][episodes == episode].sum()) for episode in range(4)]
    assert lengths == [int(np.count_nonzero(steps & (episodes == episode))) for episode in range(4)]


def test_an_episode_with_a_reward_that_is_not_finite_is_not_reported() -> None:
    class Infinite(CountingEnv):
        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, np.inf if reward == 2 else reward, terminated, truncated, info

    _, counters = act(make_parts([Infinite()]), 15)
    assert counters.take_episodes()[1] == [7], "the first one had the infinite reward"
    assert counters.env_steps == 15


# Several environments.


def test_each_of_several_environments_gives_the_rows_that_it_would_give_alone() -> None:
    all_three, counters = act(make_parts(limited()), 40)
    assert counters.env_steps == 120
    returns: list[float] = []
    for j, env in enumerate(limited()):
        alone, own = act(make_parts([env]), 40, seed=7 + j)
        found, expected = all_three.lane(j), alone.items()
        assert_same({**found, "lane": found["lane"] * 0}, expected)
        returns += own.take_episodes()[0]
    assert sorted(counters.take_episodes()[0]) == sorted(returns)


def test_the_rows_of_a_round_stand_together_and_final_rows_before_the_next_ones() -> None:
    sink, _ = act(make_parts(limited()), 5)
    assert [items["lane"].tolist() for items in sink.pushed] == [[0, 1, 2]] * 2 + [[0, 1, 2, 0]] + [[0, 1, 2]] + [
        [0, 1, 2, 1]
    ]
    assert [items["final"].tolist() for items in sink.pushed[2:3]] == [[False] * 3 + [True]]


def test_one_inference_acts_in_all_environments() -> None:
    asked: list[list[float]] = []

    def choose(obs: Array) -> Array:
        asked.append(obs[:, 0].tolist())
        actions: Array = ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)
        return actions

    act(make_parts(counting(3), lambda s: Acts(s, choose)), 4, seed=20)
    assert asked == [[20, 21, 22]] * 4


def test_environment_j_is_seeded_with_the_actors_seed_plus_j_and_once_only() -> None:
    envs = [SeedWatchingEnv() for _ in range(3)]
    act(make_parts(list[Env](envs)), 10, seed=123)
    assert [env.seeds for env in envs] == [[123, None], [124, None], [125, None]]


def test_the_agent_is_told_where_episodes_begin_before_it_acts_there() -> None:
    parts = make_parts(limited(), lambda s: Acts(s, lambda obs: ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)))
    act(parts, 6)
    assert isinstance(parts.agent, Acts)
    assert parts.agent.begun == [[True, True, True], [True, False, False], [False, True, False]]


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        (np.zeros(1, np.int64), r"int64 \[1\]"),
        (np.zeros(3, np.int32), r"int32 \[3\]"),
        (np.zeros((3, 1), np.int64), r"int64 \[3, 1\]"),
        ([0, 0, 0], "list"),
    ],
)
def test_an_agent_that_gives_other_actions_than_one_for_each_lane_is_refused(actions: Any, found: str) -> None:
    parts = make_parts(counting(3), lambda s: Acts(s, lambda _: actions))
    with pytest.raises(PluginError, match=rf"agent\.sample: expected actions for 3 observations, .*found {found}"):
        act(parts, 1)


# Vector environments.


@MODES
@pytest.mark.usefixtures("_same_seeds")
@pytest.mark.parametrize("copy", [True, False])
def test_a_vector_environment_in_any_mode_gives_the_rows_of_plain_ones(mode: AutoresetMode, copy: bool) -> None:
    plain, _ = act(make_parts(limited()), 60)
    vector, counters = act(make_parts(together(limited(), mode, copy=copy)), 60)
    for j in range(3):
        found, expected = vector.lane(j), plain.lane(j)
        rows = len(found["lane"])  # With a reset at the next step, lanes take fewer steps in as many rounds.
        assert rows >= 40
        assert_same(found, {name: column[:rows] for name, column in expected.items()})
    steps = np.count_nonzero(~vector.column("final"))
    assert counters.env_steps == steps == (180 if mode is not AutoresetMode.NEXT_STEP else steps)


@MODES
@pytest.mark.usefixtures("_same_seeds")
def test_episodes_of_a_vector_environment_are_counted_as_those_of_plain_ones(mode: AutoresetMode) -> None:
    _, plain = act(make_parts(limited()), 30)
    _, vector = act(make_parts(together(limited(), mode)), 40)
    found, expected = (list(zip(*c.take_episodes()[:2], strict=True)) for c in (vector, plain))
    assert set(expected[:-3]) <= set(found)


def test_a_vector_environment_is_seeded_far_from_those_of_other_actors() -> None:
    assert len({spread(seed) // 1000 for seed in range(100)}) > 95
    assert all(0 <= spread(seed) < 1 << 31 for seed in range(100))


@MODES
@pytest.mark.usefixtures("_same_seeds")
def test_agents_are_told_where_episodes_of_a_vector_environment_begin(mode: AutoresetMode) -> None:
    env = together(limited(), mode)
    parts = make_parts(env, lambda s: Acts(s, lambda obs: ((obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)))
    sink, _ = act(parts, 30)
    assert isinstance(parts.agent, Acts)
    for j in range(3):
        begun = sum(lanes[j] for lanes in parts.agent.begun)
        assert begun in (np.count_nonzero(sink.lane(j)["first"]), np.count_nonzero(sink.lane(j)["first"]) + 1)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_gives_whole_episodes() -> None:
    from common.envs.pool import make

    parts = make_parts(
        make("CartPole-v1", num_envs=5, seed=3), lambda s: Acts(s, lambda obs: (obs[:, 3] > 0).astype(np.int64))
    )
    sink, counters = act(parts, 500)
    returns, lengths, _ = counters.take_episodes()
    assert len(returns) > 5
    assert returns == lengths
    for j in range(5):
        rows = sink.lane(j)
        ends = np.flatnonzero(rows["final"])
        assert (rows["terminated"] | rows["truncated"])[ends - 1].all()
        np.testing.assert_array_equal(rows["first"][1:], rows["final"][:-1])
        fell = ends[rows["terminated"][ends - 1]]
        assert (np.abs(rows["obs"][fell][:, [0, 2]]) > [2.4, 0.2094]).any(axis=1).all(), "true last observations"
        assert (np.abs(rows["obs"][rows["first"]]) <= 0.05).all()


# Maps of rows.


class Doubled(RowMap):
    """Doubles rewards, and says so in a column."""

    def schema(self, rows: Schema) -> Schema:
        return rows.plus(Column.of("doubled", np.bool_))

    def map(self, rows: Items) -> Items:
        return {**rows, "reward": 2 * rows["reward"], "doubled": np.ones(len(rows["reward"]), bool)}


@pytest.mark.parametrize("size", [1, 10])
def test_a_map_of_rows_changes_what_is_pushed(size: int) -> None:
    sink, _ = act(make_parts([CountingEnv()], row_map=Doubled()), 20, sink=KeptBatches(size))
    expected = expected_rows(7, 20)
    np.testing.assert_array_equal(sink.column("reward"), 2 * expected["reward"])
    assert sink.column("doubled").all()
    for name in expected.keys() - {"reward"}:
        np.testing.assert_array_equal(sink.column(name), expected[name])


class OneFewer(SameColumns):
    def map(self, rows: Items) -> Items:
        return {name: column[1:] for name, column in rows.items()}


class OtherDtype(SameColumns):
    def map(self, rows: Items) -> Items:
        return {**rows, "reward": rows["reward"].astype(np.float64)}


class Nothing(SameColumns):
    def map(self, rows: Items) -> Items:
        rows.clear()  # As one who forgets to return the rows.
        return None  # type: ignore[return-value]


class InPlace(SameColumns):
    def map(self, rows: Items) -> Items:
        rows["reward"] *= 2
        return rows


@pytest.mark.parametrize(
    ("row_map", "kind", "message"),
    [
        (OneFewer(), PluginError, "expected a map of 1 rows to as many, found 0"),
        (OtherDtype(), SchemaMismatchError, "column 'reward': expected <f4"),
        (InPlace(), ValueError, "read-only"),
        (Nothing(), PluginError, "step_processor: expected a map of rows to columns by their names, found None"),
    ],
)
def test_a_map_that_gives_other_rows_than_it_says_is_refused(
    row_map: RowMap, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        act(make_parts([CountingEnv()], row_map=row_map), 1)


# Time.


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

    monkeypatch.setattr("actor.sampling.sampler.monotonic", lambda: now)
    counters = ActorCounters()
    parts = make_parts([Slow() for _ in range(2)], lambda s: Thinking(s, seed=7, epsilon=0.0, device="cpu"))
    sampler = Sampler(parts, counters, seed=7)
    for _ in range(3):
        sampler.sample_and_push(parts.agent, Held())
        spend(5000)  # A trainer may learn in between.
    assert (counters.env_seconds, counters.inference_seconds) == (2 * 10 + 6 * 1, 3 * 100)


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 1), (2.5, 3)])
def test_acting_for_a_time_takes_whole_rounds_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    now = 0.0

    class Slow(CountingEnv):
        def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            nonlocal now
            now += 1
            return super().step(action)

    monkeypatch.setattr("actor.sampling.sampler.monotonic", lambda: now)
    parts, counters = make_parts([Slow()]), ActorCounters()
    Sampler(parts, counters, seed=7).act_for(seconds, parts.agent, Kept())
    assert counters.env_steps == rounds
