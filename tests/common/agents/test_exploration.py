from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.agents.exploration import EpsilonGreedy

UNIT = st.floats(0, 1)


STEPS = [(0, 1.0), (25, 0.8), (50, 0.6), (99, 0.208), (100, 0.2), (999, 0.2)]


@pytest.mark.parametrize(("opt_steps", "epsilon"), STEPS)
def test_epsilon_falls_linearly_to_the_actors_own_rung_and_stays(opt_steps: int, epsilon: float) -> None:
    assert EpsilonGreedy(start=1.0, final_step=100).at(opt_steps, final=0.2) == pytest.approx(epsilon)


def test_without_a_schedule_an_actor_begins_on_its_rung() -> None:
    assert EpsilonGreedy(start=1.0, final_step=0).at(0, final=0.2) == 0.2


@given(UNIT, UNIT, st.integers(0, 50), st.integers(0, 60))
def test_epsilon_always_lies_between_both_ends_and_moves_one_way(
    start: float, final: float, final_step: int, opt_steps: int
) -> None:
    explorer = EpsilonGreedy(start=start, final_step=final_step)
    now, later = explorer.at(opt_steps, final), explorer.at(opt_steps + 1, final)
    low, high = sorted((start, final))
    assert low - 1e-12 <= now <= high + 1e-12
    assert abs(later - final) <= abs(now - final) + 1e-12
