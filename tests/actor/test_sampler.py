from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import Autoreset, TimeLimit

from actor.sampler import Sampler, spread
from actor.stat import ActorCounters
from common.data import Array, Column, Items, Leaves, Schema
from common.envs import Env
from common.errors import PluginError, SchemaMismatchError
from common.interfaces import EnvSpec, RowMap, Step
from common.processors import SameColumns
from tests.actor.acting import Acts, Kept, KeptBatches, act, env_config, make_parts, together
from tests.parts import CheckingAgent, CountingEnv, check_rows, expected_rows

Wrap = Callable[[Env], Env]
BARE_AND_AUTORESET = pytest.mark.parametrize("wrap", [lambda env: env, Autoreset], ids=["bare", "autoreset"])
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


def assert_same(found: Items, expected: Items) -> None:
    assert list(found) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name, strict=True)


def counting(n: int) -> list[Env]:
    return [CountingEnv() for _ in range(n)]


def limited() -> list[Env]:
    """Environments whose episodes end in different rounds."""
    return [TimeLimit(CountingEnv(), limit) for limit in (3, 5, 100)]


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


def test_many_rows_are_kept_until_the_sink_takes_them() -> None:
    sink, _ = act(make_parts(counting(3)), 2000, sink=KeptBatches(5000))
    assert len(sink.pushed[0]["lane"]) >= 5000
    for j in range(3):
        assert_same(sink.lane(j), expected_rows(7 + j, 2000, lane=j))


def test_a_final_row_repeats_the_last_action_and_has_no_reward() -> None:
    rows = act(make_parts([CountingEnv()]), 7)[0].items()
    assert rows["final"].tolist() == [False] * 6 + [True, False]
    assert rows["action"][6] == rows["action"][5]
    assert (rows["reward"][6], rows["terminated"][5], rows["terminated"][6]) == (0.0, True, False)
    assert rows["first"].tolist() == [True] + [False] * 6 + [True]


def test_each_row_has_the_version_of_the_model_that_acted() -> None:
    parts, sink = make_parts(counting(2)), KeptBatches(8)
    sampler = Sampler(parts, ActorCounters(), seed=7)
    for version in (0, 5, 6, 9, 9, 12):
        sampler.version = version
        sampler.sample_and_push(parts.agent, sink)
    sampler.flush(parts.agent, sink)
    assert [items["version"].tolist() for items in sink.pushed] == [[0, 0, 5, 5, 6, 6, 9, 9], [9, 9, 12, 12, 12, 12]]


@BARE_AND_AUTORESET
def test_only_the_first_reset_is_seeded(wrap: Wrap) -> None:
    env = SeedWatchingEnv()
    act(make_parts([wrap(env)]), 30, seed=123)
    assert len(env.seeds) >= 4
    assert env.seeds == [123] + [None] * (len(env.seeds) - 1)


def test_the_same_seed_lives_the_same_life_and_another_one_another() -> None:
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


def test_each_of_several_environments_lives_as_it_would_alone() -> None:
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


@pytest.fixture
def _same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actor.sampler.spread", lambda seed: seed)


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
    pytest.importorskip("envpool")
    from common.pool import make

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


# Structured spaces.

BOX = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
PARTED = gymnasium.spaces.Dict(
    {
        "camera": gymnasium.spaces.Box(0, 255, (2, 4), np.uint8),
        "arm": gymnasium.spaces.Dict({"joints": BOX, "grip": gymnasium.spaces.MultiBinary(3)}),
        "pair": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(5), gymnasium.spaces.MultiDiscrete([3, 4]))),
    }
)


class Parted(gymnasium.Env[Any, Any]):
    """Observes and takes random elements of a nested space, and remembers them; episodes have four steps."""

    observation_space = action_space = PARTED

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.taken: list[Any] = []

    def _observe(self) -> Any:
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(
            {**action, "arm": {**action["arm"], "joints": action["arm"]["joints"].astype(np.float64)}}
        )
        self.taken.append(action)
        return self._observe(), 1.0, len(self.taken) % 4 == 0, False, {}


def mirrored(obs: Leaves) -> Leaves:
    """Takes what it sees."""
    assert isinstance(obs, dict)
    return {path: leaf.copy() for path, leaf in obs.items()}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_nested_spaces_are_recorded_leaf_by_leaf_in_their_own_dtypes(n: int, mode: AutoresetMode | None) -> None:
    envs = [Parted() for _ in range(n)]
    lanes = together(envs, mode)
    sink, _ = act(make_parts(lanes, lambda s: Acts(s, mirrored)), 10)
    dtypes = {name.removeprefix("obs/"): c.dtype for name, c in sink.items().items() if name.startswith("obs/")}
    assert dtypes == {"camera": "u1", "arm/joints": "f4", "arm/grip": "i1", "pair/0": "i8", "pair/1": "i8"}
    for j, env in enumerate(envs):
        rows = sink.lane(j)
        count = len(rows["lane"])
        assert count >= 10
        seen = env.seen[:count]
        np.testing.assert_array_equal(rows["obs/camera"], [obs["camera"] for obs in seen])
        np.testing.assert_array_equal(rows["obs/arm/joints"], np.array([obs["arm"]["joints"] for obs in seen], "f4"))
        np.testing.assert_array_equal(rows["obs/arm/grip"], [obs["arm"]["grip"] for obs in seen])
        np.testing.assert_array_equal(rows["obs/pair/0"], [obs["pair"][0] for obs in seen])
        np.testing.assert_array_equal(rows["obs/pair/1"], [obs["pair"][1] for obs in seen])
        steps = ~rows["final"]
        np.testing.assert_array_equal(rows["action/arm/grip"][steps], rows["obs/arm/grip"][steps])
        np.testing.assert_array_equal(
            rows["action/pair/1"][steps], [action["pair"][1] for action in env.taken[: np.count_nonzero(steps)]]
        )


def test_an_action_that_lacks_a_leaf_is_refused() -> None:
    def without(obs: Leaves) -> Leaves:
        actions = mirrored(obs)
        assert isinstance(actions, dict)
        del actions["camera"]
        return actions

    with pytest.raises(PluginError, match=r"agent\.sample: expected .*camera: uint8 \['n', 2, 4\].*found arm/grip"):
        act(make_parts([Parted()], lambda s: Acts(s, without)), 1)


# Extras, info, and what was executed.


class Remembering(CheckingAgent):
    """Records the sum of each episode's steps before the action."""

    _memory = np.zeros(0, np.float32)

    def begin(self, lanes: Array) -> None:
        self._memory = np.where(lanes, 0, self._memory if len(self._memory) else np.zeros(len(lanes))).astype("f4")

    def sample(self, obs: Array) -> Array:
        self._before, self._memory = self._memory, self._memory + obs[:, 1]
        return super().sample(obs)

    def extra_columns(self) -> tuple[Column, ...]:
        return (Column.of("state", np.float32, (2,)), Column.of("logp", np.float32))

    def extras(self) -> Items:
        return {"state": np.stack([self._before, self._before], axis=1), "logp": -self._before}


@pytest.mark.parametrize("n", [1, 2])
def test_what_the_agent_says_of_its_actions_stands_beside_them(n: int) -> None:
    sink, _ = act(make_parts(counting(n), lambda s: Remembering(s, seed=0, epsilon=0.0, device="cpu")), 20)
    for j in range(n):
        rows = {name: column[~sink.lane(j)["final"]] for name, column in sink.lane(j).items()}
        begins = np.flatnonzero(rows["first"])
        sums = np.cumsum(rows["obs"][:, 1]) - rows["obs"][:, 1]
        expected = sums - sums[begins[np.cumsum(rows["first"]) - 1]]
        np.testing.assert_array_equal(rows["state"][:, 1], expected)
        np.testing.assert_array_equal(rows["logp"], -expected)


class Informing(CountingEnv):
    """Says things in info: a success in every step, a force from the second step on, now and then another action."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"is_success": self._episode % 2 == 0}
        if self._step > 2:
            info["force"] = np.full(3, self._step, np.float64)
        if self._step % 3 == 0:
            info["intervene_action"] = 2 - action
        return obs, reward, terminated, truncated, info


INFORMED = env_config(info={"is_success": "bool", "force": "float32[3]"}, intervention="intervene_action")


@pytest.mark.usefixtures("_same_seeds")
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_values_of_info_and_executed_actions_are_recorded(mode: AutoresetMode | None) -> None:
    envs = [Informing() for _ in range(2)]
    lanes = together(envs, mode)
    sink, counters = act(make_parts(lanes, config=INFORMED), 25)
    for j in range(2):
        rows = {name: column[~sink.lane(j)["final"]] for name, column in sink.lane(j).items()}
        step, episode = rows["obs"][:, 1] + 1, rows["obs"][:, 2]
        acted = (rows["obs"][:, 1] + episode) % 3
        np.testing.assert_array_equal(rows["info/is_success"], episode % 2 == 0)
        np.testing.assert_array_equal(rows["info/force"][:, 1], np.where(step > 2, step, 0))
        np.testing.assert_array_equal(rows["intervened"], step % 3 == 0)
        np.testing.assert_array_equal(rows["action"], np.where(step % 3 == 0, 2 - acted, acted))
    successes = counters.take_episodes()[2]
    assert successes[:4] == [True, True, False, False]


def test_a_value_of_info_of_another_shape_is_refused() -> None:
    config = env_config(info={"force": "float32[2]"})
    with pytest.raises(PluginError, match=r"info\['force'\]: expected the shape \[2\], found \[3\]"):
        act(make_parts([Informing()], config=config), 5)


# Maps of rows and step processors.


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
    ],
)
def test_a_map_that_gives_other_rows_than_it_says_is_refused(
    row_map: RowMap, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        act(make_parts([CountingEnv()], row_map=row_map), 1)


class Pairs:
    """Two steps of one episode make an item; a single one at the end of an episode makes none."""

    def __init__(self) -> None:
        self._first: Step | None = None

    def schema(self, spec: EnvSpec) -> Schema:
        return Schema((Column("episodes", "<f4", (2,)), Column("steps", "<f4", (2,))))

    def reset(self) -> None:
        self._first = None

    def process(self, step: Step) -> Items | None:
        assert isinstance(step.obs, np.ndarray)
        if self._first is None:
            self._first = step
            return None
        first, self._first = self._first, None
        assert isinstance(first.obs, np.ndarray)
        return {
            "episodes": np.array([[first.obs[2], step.obs[2]]]),
            "steps": np.array([[first.obs[1], step.obs[1]]]),
        }


@BARE_AND_AUTORESET
def test_the_memory_of_a_step_processor_never_crosses_an_episode(wrap: Wrap) -> None:
    sink, counters = act(make_parts([wrap(CountingEnv())], processors=[Pairs()]), 60)
    episodes, steps = sink.column("episodes"), sink.column("steps")
    np.testing.assert_array_equal(episodes[:, 0], episodes[:, 1])
    np.testing.assert_array_equal(steps[:, 0] + 1, steps[:, 1])
    assert counters.env_steps == 60
    assert 20 < len(sink.pushed) <= 30


def test_a_step_that_makes_no_item_pushes_nothing_but_counts() -> None:
    sink, counters = act(make_parts([CountingEnv()], processors=[Pairs()]), 1)
    assert sink.pushed == []
    assert counters.env_steps == 1


class Transitions:
    """Each step as an item."""

    def schema(self, spec: EnvSpec) -> Schema:
        shape = spec.observation_space.shape or ()
        obs = [Column.of(name, np.float32, shape) for name in ("obs", "next_obs")]
        return Schema((*obs, Column.of("action", np.int64), Column.of("done", np.bool_)))

    def reset(self) -> None: ...

    def process(self, step: Step) -> Items:
        pairs = {"obs": step.obs, "next_obs": step.next_obs, "action": step.action}
        return {
            **{name: np.asarray(value)[None] for name, value in pairs.items()},
            "done": np.array([step.terminated or step.truncated]),
        }


@pytest.mark.usefixtures("_same_seeds")
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("frames", [1, 3])
def test_step_processors_see_the_true_next_observation_as_the_agent_would(
    mode: AutoresetMode | None, frames: int
) -> None:
    envs = limited()
    lanes = together(envs, mode)
    config = env_config(frame_stack=frames)

    def newest(obs: Array) -> Array:
        last = obs if frames == 1 else obs[:, -1]
        actions: Array = ((last[:, 1] + last[:, 2]) % 3).astype(np.int64)
        return actions

    parts = make_parts(lanes, lambda s: Acts(s, newest), config=config, processors=[Transitions() for _ in range(3)])
    items = act(parts, 30)[0].items()
    obs, later = (items[name].reshape(len(items["done"]), frames, 3) for name in ("obs", "next_obs"))
    np.testing.assert_array_equal(later[:, -1], obs[:, -1] + [0, 1, 0])
    np.testing.assert_array_equal(later[:, :-1], obs[:, 1:])
    assert items["done"].sum() > 5


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

    monkeypatch.setattr("actor.sampler.perf_counter", lambda: now)
    counters = ActorCounters()
    parts = make_parts([Slow() for _ in range(2)], lambda s: Thinking(s, seed=7, epsilon=0.0, device="cpu"))
    sampler = Sampler(parts, counters, seed=7)
    for _ in range(3):
        sampler.sample_and_push(parts.agent, Held())
        spend(5000)  # A trainer may learn in between.
    assert (counters.env_seconds, counters.inference_seconds) == (2 * 10 + 6 * 1, 3 * 100)
