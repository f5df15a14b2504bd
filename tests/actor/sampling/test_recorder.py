"""What happens in the lanes, as it stands in the columns of rows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from actor.sampling.recorder import RowRecorder
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array, Column, Items, Leaves
from common.errors import PluginError
from common.lanes.building import Env
from common.lanes.lanes import Round
from tests.actor.acting import (
    Acts,
    KeptBatches,
    act,
    assert_same,
    counting,
    env_config,
    make_parts,
    together,
)
from tests.actor.sampling.test_item_maker import Transitions
from tests.actor.sampling.test_sampler import Doubled
from tests.frame_parts import FilmCritic, check_filmed, filmed_counting_env
from tests.parts import CheckingAgent, CountingEnv, check_transitions, counting_schema, expected_rows


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


def test_rounds_may_name_their_lanes_and_have_any_number_of_them() -> None:
    records = RowRecorder(counting_schema(), 0)
    expected = {lane: expected_rows(lane, 600, lane=lane) for lane in (3, 8, 9)}
    told = dict.fromkeys(expected, 0)
    for number in range(600):
        lanes = [8] if number < 300 else ([3, 8, 9], [8], [9, 3])[number % 3]  # Room is made in a round of one lane.
        at = {lane: _next_step(expected[lane], told[lane]) for lane in lanes}
        seen, reward, terminated, truncated, action, first = (
            np.array([expected[lane][name][i] for lane, i in at.items()])
            for name in ("obs", "reward", "terminated", "truncated", "action", "first")
        )
        records.begin(seen, first, action, None, np.array(lanes))
        ended = np.flatnonzero(terminated | truncated)
        final = np.array([expected[lanes[j]]["obs"][at[lanes[j]] + 1] for j in ended])
        outcome = Round(reward, terminated, truncated, seen)
        if len(ended):
            outcome.ended, outcome.final_obs = ended, final
        records.end(outcome)
        told |= {lane: i + 1 for lane, i in at.items()}
    rows = records.items()
    for lane, wanted in expected.items():
        found = {name: column[rows["lane"] == lane] for name, column in rows.items()}
        assert_same(found, {name: column[: len(found["lane"])] for name, column in wanted.items()})


def test_lanes_that_take_no_step_leave_no_rows_and_take_no_room() -> None:
    records = RowRecorder(counting_schema(), 32)
    rng, lanes = np.random.default_rng(0), np.arange(32)
    expected = list[tuple[int, int, int, bool, bool]]()
    for number in range(2000):
        records.version = number // 300
        taken = rng.random(32) < (0.5 if number % 100 == 7 else 0.03)
        begins, ended = rng.random(32) < 0.2, np.flatnonzero(taken & (rng.random(32) < 0.2))
        records.begin(np.full((32, 3), number, np.float32), begins, lanes % 2, None)
        # What an environment says of a lane that took no step means nothing.
        outcome = Round(lanes + 1.0, ~taken, ~taken, np.zeros((32, 3)), ended, np.full((len(ended), 3), number), taken)
        records.end(outcome)
        expected += [(number, lane, records.version, begins[lane], False) for lane in np.flatnonzero(taken).tolist()]
        expected += [(number, lane, records.version, False, True) for lane in ended.tolist()]
        assert records.rows == len(expected)
    rows = records.items()
    numbers, lanes_of_rows, *others = (np.array(column) for column in zip(*expected, strict=True))
    assert (rows["obs"] == numbers[:, None]).all()
    for name, column in zip(("lane", "version", "first", "final"), (lanes_of_rows, *others), strict=True):
        assert (rows[name] == column).all(), name
    assert (rows["reward"] == np.where(rows["final"], 0, lanes_of_rows + 1)).all()
    assert not rows["truncated"].any()
    assert len(records._reward) < 4 * len(expected)


def test_steps_that_come_all_at_once_follow_each_other_where_the_lane_took_no_step() -> None:
    records, expected = RowRecorder(counting_schema(), 1), list[int]()

    def step(number: int, *, taken: bool) -> None:
        obs, no = np.full((1, 3), number, np.float32), np.zeros(1, bool)
        records.begin(obs, None, np.array([number % 2]), None)
        records.end(Round(np.array([number]), no, no, obs, taken=None if taken else no))
        expected.extend([number] if taken else [])

    for number in range(1, 4000, 400):  # Room is made several times, each time with a gap before it.
        step(number, taken=True)
        step(number + 1, taken=False)
        more = list(range(number + 2, number + 300))
        obs = [np.full((1, 3), each, np.float32).tobytes() for each in more]
        records.extend(obs, [np.array([each % 2]).tobytes() for each in more], more)
        expected += more
        assert records.rows == len(expected)
    rows = records.items()
    assert rows["reward"].tolist() == expected
    assert (rows["obs"] == np.array(expected)[:, None]).all()
    assert (rows["action"] == np.array(expected) % 2).all()


def _next_step(rows: Items, at: int) -> int:
    return at + int(rows["final"][at])


def test_a_version_that_comes_back_leaves_nothing_of_the_one_in_between() -> None:
    parts, sink = make_parts(counting(1)), KeptBatches(3)
    sampler = Sampler(parts, ActorCounters(), seed=7)
    for version in (5, 8, 5, 5, 5):
        sampler.version = version
        sampler.sample_and_push(parts.agent, sink)
    sampler.flush(parts.agent, sink)
    assert [items["version"].tolist() for items in sink.pushed] == [[5, 8, 5], [5, 5]]


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


class NumberEnv(gymnasium.Env[Any, Any]):
    """Observes random elements of a space without dimensions, and remembers them; episodes have four steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.observation_space = space
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._left = 4
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._observe(), 1.0, self._left == 0, False, {}

    def _observe(self) -> Any:
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]


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


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("space", [gymnasium.spaces.Discrete(5, start=-1), gymnasium.spaces.Box(-1, 1, ())])
def test_observations_of_a_single_number_are_recorded(space: gymnasium.Space[Any], n: int) -> None:
    envs = [NumberEnv(space) for _ in range(n)]
    sink, _ = act(make_parts(envs, lambda s: Acts(s, lambda obs: np.zeros(len(obs), np.int64))), 10)
    for j, env in enumerate(envs):
        seen = sink.lane(j)["obs"]
        assert (seen.ndim, len(seen) >= 10) == (1, True)
        np.testing.assert_array_equal(seen, env.seen[: len(seen)])


def test_an_action_that_lacks_a_leaf_is_refused() -> None:
    def without(obs: Leaves) -> Leaves:
        actions = mirrored(obs)
        assert isinstance(actions, dict)
        del actions["camera"]
        return actions

    with pytest.raises(PluginError, match=r"agent\.sample: expected .*camera: uint8 \[1, 2, 4\].*found arm/grip"):
        act(make_parts([Parted()], lambda s: Acts(s, without)), 1)


class Remembering(CheckingAgent):
    """Records the sum of each episode's steps before the action."""

    _memory = np.zeros(0, np.float32)

    def begin(self, begins: Array, lanes: Array | None = None) -> None:
        self._memory = np.where(begins, 0, self._memory if len(self._memory) else np.zeros(len(begins))).astype("f4")

    def sample(self, obs: Array) -> Array:
        self._before, self._memory = self._memory, self._memory + obs[:, 1]
        return super().sample(obs)

    def extra_columns(self) -> tuple[Column, ...]:
        return (Column.of("state", np.float32, (2,)), Column.of("logp", np.float32))

    def extras(self) -> Items:
        return {"state": np.stack([self._before, self._before], axis=1), "logp": -self._before}


@pytest.mark.parametrize("n", [1, 2])
def test_an_agents_extras_are_recorded_beside_its_actions(n: int) -> None:
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
    assert counters.intervened_steps == np.count_nonzero(sink.column("intervened"))
    successes = counters.take_episodes()[2]
    assert successes[:4] == [True, True, False, False]


class Unsure(Informing):
    """Says None of a force that it does not know."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"force": None}


def test_a_value_of_info_that_is_none_counts_as_missing() -> None:
    sink, _ = act(make_parts([Unsure()], config=env_config(info={"force": "float32[3]"})), 9)
    assert not sink.column("info/force").any()


def test_a_value_of_info_of_another_shape_is_refused() -> None:
    config = env_config(info={"force": "float32[2]"})
    with pytest.raises(PluginError, match=r"info\['force'\]: expected the shape \[2\], found \[3\]"):
        act(make_parts([Informing()], config=config), 5)


class Rates(CheckingAgent):
    """Says of each transition that its reward is its error, after seeing that it is a whole transition."""

    rated = 0

    def td_error(self, items: Items) -> Array:
        assert set(items) == {"obs", "next_obs", "action", "reward", "terminated", "truncated", "version"}
        self.check(items)
        self.rated += len(items["reward"])
        return -items["reward"]


def rates(spec: Any) -> Rates:
    return Rates(spec, seed=7, epsilon=0.0, device="cpu")


def limited() -> list[Env]:
    return [CountingEnv(), CountingEnv()]


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_each_step_has_the_error_of_its_transition_and_final_rows_have_none(
    mode: AutoresetMode | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actor.sampling.sampler.spread", lambda seed: seed)
    envs = limited()
    lanes = together(envs, mode)
    parts = make_parts(lanes, rates, priorities=True)
    rows = act(parts, 30, sink=KeptBatches(size))[0].items()
    np.testing.assert_array_equal(rows["priority"], rows["reward"])
    assert rows["priority"].dtype == np.float32
    assert isinstance(parts.agent, Rates)
    assert parts.agent.rated == np.count_nonzero(~rows["final"])


class RatesFilms(FilmCritic):
    def td_error(self, items: Items) -> Array:
        check_transitions(check_filmed(items))
        return items["reward"]


@pytest.mark.parametrize("size", [1, 10])
def test_with_stacks_of_frames_errors_are_those_of_stacks(size: int) -> None:
    parts = make_parts(
        [filmed_counting_env() for _ in range(2)],
        lambda s: RatesFilms(s, seed=7, epsilon=0.0, device="cpu"),
        config=env_config(frame_stack=4),
        priorities=True,
    )
    rows = act(parts, 30, sink=KeptBatches(size))[0].items()
    assert rows["obs"].shape[1:] == (32, 32)
    np.testing.assert_array_equal(rows["priority"], rows["reward"])


def test_errors_are_those_of_mapped_rows() -> None:
    class RatesDoubled(Rates):
        def td_error(self, items: Items) -> Array:
            assert items["doubled"].all()
            return items["reward"]

    make = lambda s: RatesDoubled(s, seed=7, epsilon=0.0, device="cpu")  # noqa: E731
    rows = act(make_parts([CountingEnv()], make, row_map=Doubled(), priorities=True), 20)[0].items()
    np.testing.assert_array_equal(rows["priority"], 2 * np.where(rows["final"], 0, rows["obs"][:, 1]))


def test_items_of_a_step_processor_get_their_errors() -> None:
    class RatesItems(Rates):
        def td_error(self, items: Items) -> Array:
            return items["obs"][:, 1]

    make = lambda s: RatesItems(s, seed=7, epsilon=0.0, device="cpu")  # noqa: E731
    parts = make_parts([TimeLimit(CountingEnv(), 5)], make, processors=[Transitions()], priorities=True)
    items = act(parts, 12)[0].items()
    np.testing.assert_array_equal(items["priority"], items["obs"][:, 1])


def test_an_agent_that_does_not_give_one_error_for_each_step_is_refused() -> None:
    class Summing(Rates):
        def td_error(self, items: Items) -> Array:
            total: Array = items["reward"].sum(keepdims=True)
            return total

    make = lambda s: Summing(s, seed=7, epsilon=0.0, device="cpu")  # noqa: E731
    with pytest.raises(PluginError, match=r"Summing\.td_error: expected shape \[2\], found \[1\]"):
        act(make_parts(limited(), make, priorities=True), 1)


def test_an_agent_without_td_errors_is_refused() -> None:
    with pytest.raises(PluginError, match=r"push\.initial_priorities: CheckingAgent has no td_error\(items\)"):
        act(make_parts([CountingEnv()], priorities=True), 1)
