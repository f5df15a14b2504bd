from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from common.data import Array, Items
from common.errors import PluginError
from common.lanes.building import Env
from tests.actor.acting import KeptBatches, act, env_config, make_parts, together
from tests.actor.sampling.test_item_maker import Transitions
from tests.actor.sampling.test_sampler import Doubled
from tests.frame_parts import FilmCritic, check_filmed, filmed_counting_env
from tests.parts import CheckingAgent, CountingEnv, check_transitions


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
