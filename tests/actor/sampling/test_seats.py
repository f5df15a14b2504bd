"""Rows of environments with several agents: each agent's rows are those that one would record by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from pettingzoo.utils.conversions import turn_based_aec_to_parallel

from actor.sampling.sampler import require_lanes, spread
from common.data import Array, Items
from common.envs.pettingzoo import SeatsEnv, make
from common.errors import PluginError
from common.lanes.lanes import Busy
from tests.actor.acting import Acts, KeptBatches, act, make_parts
from tests.seats import Crowd, record_by_hand


def constant(spec: Any) -> Acts:
    return Acts(spec, lambda obs: np.zeros(len(obs), np.int64))


def by_sum(obs: Any) -> int:
    """An action that depends on the observation."""
    return int(np.sum(np.asarray(obs, np.float64) * 8)) % 3


def first_allowed(obs: Any) -> int:
    return int(np.argmax(obs["action_mask"]))


def assert_rows(found: Items, expected: list[Any], *, leaf: str = "obs") -> None:
    """The rows of a lane are these, see ``record_by_hand``."""
    assert len(found["final"]) == len(expected)
    names = ("action", "reward", "terminated", "truncated", "first", "final")
    for i, (obs, *values) in enumerate(expected):
        seen = obs["observation"] if isinstance(obs, dict) else obs
        np.testing.assert_array_equal(found[leaf][i], seen, err_msg=f"row {i}")
        if isinstance(obs, dict) and not values[-1]:
            assert first_allowed(obs) == found["action"][i] or not obs["action_mask"].any()
        for name, value in zip(names, values, strict=True):
            assert value is None or found[name][i] == value, f"{name} of row {i}"


WRAPS = {"bare": lambda env: env, "wrapped": RecordEpisodeStatistics}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("size", [1, 40, 10_000])
@pytest.mark.parametrize("groups", [1, 3])
def test_each_agent_has_the_rows_that_one_would_record_by_hand(groups: int, size: int, wrap: Any) -> None:
    env = make("tests.seats:Crowd", groups=groups)
    parts = make_parts(wrap(env), lambda spec: Acts(spec, lambda obs: np.array([by_sum(each) for each in obs])))
    sink, counters = act(parts, 200, seed=5, sink=KeptBatches(size))
    steps = 0
    for g in range(groups):
        expected = record_by_hand(Crowd(), by_sum, 200, spread(5) + g)
        for s, rows in enumerate(expected.values()):
            assert_rows(sink.lane(4 * g + s), rows)
            assert sum(row[5] for row in rows) > 5, "episodes begin, for a late agent too"
            assert {row[3:5] for row in rows} >= {(True, False), (False, True)}, "agents leave in both ways"
            steps += sum(not row[6] for row in rows)
    assert counters.env_steps == steps < 200 * env.num_envs, "nobody acts on an empty seat"


def test_an_environment_is_reset_only_when_nobody_is_left_in_a_game() -> None:
    crowd, begun = Crowd(), list[int]()
    env = SeatsEnv([crowd])
    reset = env.reset

    def counting(**arguments: Any) -> Any:
        found = reset(**arguments)
        begun.append(crowd._game)
        return found

    env.reset = counting  # type: ignore[method-assign]
    sink, _ = act(make_parts(env, constant), 200, seed=5)
    assert begun == list(range(len(begun)))
    assert sum(rows["final"].sum() for rows in map(sink.lane, range(4))) > len(begun) > 5, "others left before"


def test_rows_of_masked_observations_are_those_of_the_environment() -> None:
    parts = make_parts(
        make("tests.seats:Crowd", has_masks=True),
        lambda spec: Acts(spec, lambda obs: np.argmax(obs["action_mask"], axis=1)),
    )
    sink, _ = act(parts, 200, seed=5)
    expected = record_by_hand(Crowd(has_masks=True), first_allowed, 200, spread(5))
    for s, rows in enumerate(expected.values()):
        assert_rows(sink.lane(s), rows, leaf="obs/observation")
        masks = [row[0]["action_mask"] for row in rows]
        np.testing.assert_array_equal(sink.lane(s)["obs/action_mask"], masks)


def test_in_a_turn_game_a_waiting_agent_has_one_action_and_all_rows_are_those_of_pettingzoos_conversion() -> None:
    def choose(obs: Any) -> Array:
        chosen: Array = np.argmax(obs["action_mask"], axis=1)
        return chosen

    parts = make_parts(make("classic/tictactoe-v3"), lambda spec: Acts(spec, choose))
    sink, _ = act(parts, 60, seed=5)
    # A waiting agent's mask is all 0 in the conversion: argmax chooses the first action there too.
    game = turn_based_aec_to_parallel(pettingzoo.make("aec", "classic/tictactoe-v3"))
    expected = record_by_hand(game, first_allowed, 60, spread(5))
    for s, rows in enumerate(expected.values()):
        assert_rows(sink.lane(s), rows, leaf="obs/observation")
    acting = ~sink.column("final")
    waits = sink.column("obs/action_mask")[acting].sum(axis=1) == 1
    assert np.count_nonzero(waits) >= np.count_nonzero(acting) // 2
    assert {*sink.column("reward").tolist()} == {-1.0, 0.0, 1.0}, "both agents get theirs"


def test_a_game_in_which_all_act_at_once_is_converted_to_the_same_rows_as_its_parallel_form() -> None:
    def rows(kind: str) -> Items:
        env = SeatsEnv([pettingzoo.make(kind, "classic/rps-v2", max_cycles=7)])
        parts = make_parts(env, lambda spec: Acts(spec, lambda obs: (obs + np.arange(len(obs))) % 3))
        return act(parts, 50, seed=5)[0].items()

    one, other = rows("aec"), rows("parallel")
    assert np.count_nonzero(one["final"]) == 14
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)


def test_the_agent_learns_where_episodes_begin_so_a_memory_is_cleared_for_whoever_comes() -> None:
    agents: list[Acts] = []

    def agent(spec: Any) -> Acts:
        agents.append(constant(spec))
        return agents[0]

    sink, _ = act(make_parts(make("tests.seats:Crowd"), agent), 200, seed=5)
    for lane in range(4):
        begun = [begins[lane] for begins in agents[0].begun]
        rows = sink.lane(lane)
        is_there_at_once = rows["obs"][0, 0] == rows["obs"][0, 1] == 0
        assert begun[0], "the first call names all lanes, the empty ones too"
        assert sum(begun[1:]) == np.count_nonzero(rows["first"]) - is_there_at_once


class Keeper:
    """Replaces an environment by another one."""

    def __init__(self) -> None:
        self.busy, self.errors = Busy(), list[str]()

    def replace(self, env: Any, error: BaseException) -> Any:
        self.errors.append(str(error))
        return make("tests.seats:Crowd")


def test_when_an_environment_raises_all_its_agents_begin_again() -> None:
    class Raising(Crowd):
        def step(self, actions: Any) -> Any:
            if self._game == 3 and self._step == 1:
                raise RuntimeError("lost")
            return super().step(actions)

    parts, keeper = make_parts(SeatsEnv([Raising()]), constant), Keeper()
    require_lanes(parts).keep(keeper)
    sink, _ = act(parts, 100, seed=5)
    assert keeper.errors == ["lost"]
    for lane in range(4):
        rows = sink.lane(lane)
        ends, begins = np.flatnonzero(rows["final"]), np.flatnonzero(rows["first"])
        assert 0 <= len(begins) - len(ends) <= 2, "one episode was lost, and the last one goes on"


def test_what_breaks_pettingzoos_interface_ends_the_actor_at_once() -> None:
    class Forgets(Crowd):
        def step(self, actions: Any) -> Any:
            obs, *others = super().step(actions)
            obs.pop("a", None)
            return obs, *others

    parts, keeper = make_parts(SeatsEnv([Forgets()]), constant), Keeper()
    require_lanes(parts).keep(keeper)
    with pytest.raises(PluginError, match="observation: expected one for agent 'a', found none"):
        act(parts, 5)
    assert not keeper.errors, "another environment like it would not help"
