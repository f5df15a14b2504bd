from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.agents.dqn import QAgentConfig
from common.agents.exploring import EpsilonGreedy, EvaluationEpsilon, Explorer, Greedy, Softmax, choose_mostly_best
from common.agents.machinery.lane_states import LaneRandom
from common.agents.networks.discrete_actions import NOT_ALLOWED
from common.data import Array
from tests.conftest import ROOT

UNIT = st.floats(0, 1)
VALUES = np.array([[1.0, 3.0, 2.0, -50.0]], np.float32)


def shares(
    explorer: EpsilonGreedy | Softmax | Greedy, values: Array = VALUES, own: float = 0.0, opt_steps: int = 0
) -> Array:
    """How often each of the actions is chosen."""
    n = 20_000
    actions = explorer.choose(values.repeat(n, axis=0), opt_steps, own, np.random.default_rng(0))
    return np.bincount(actions, minlength=values.shape[1]) / n


KINDS = [model.model_fields["kind"].default for model in get_args(get_args(Explorer)[0])]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_named_where_a_user_looks_for_one(kind: str) -> None:
    page = (ROOT / "docs" / "choosing-an-agent.md").read_text().partition("## Exploration")[2]
    assert f"`{kind}`" in page
    description = QAgentConfig.model_fields["explorer"].description
    assert description is not None
    assert kind in description


# Epsilon-greedy.

STEPS = [(0, 1.0), (25, 0.8), (50, 0.6), (99, 0.208), (100, 0.2), (999, 0.2)]


@pytest.mark.parametrize(("opt_steps", "epsilon"), STEPS)
def test_epsilon_falls_linearly_to_the_actors_own_value_and_stays(opt_steps: int, epsilon: float) -> None:
    assert EpsilonGreedy(start=1.0, final_step=100).at(opt_steps, own=0.2) == pytest.approx(epsilon)


def test_without_a_schedule_an_actor_begins_at_its_own_epsilon() -> None:
    assert EpsilonGreedy(start=1.0, final_step=0).at(0, own=0.2) == 0.2


@given(UNIT, UNIT, st.integers(0, 50), st.integers(0, 60))
def test_epsilon_always_lies_between_both_ends_and_moves_one_way(
    start: float, final: float, final_step: int, opt_steps: int
) -> None:
    explorer = EpsilonGreedy(start=start, final_step=final_step)
    now, later = explorer.at(opt_steps, final), explorer.at(opt_steps + 1, final)
    low, high = sorted((start, final))
    assert low - 1e-12 <= now <= high + 1e-12
    assert abs(later - final) <= abs(now - final) + 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_the_best_action_is_taken_but_with_probability_epsilon_a_random_one(epsilon: float) -> None:
    expected = np.full(4, epsilon / 4) + np.array([0, 1 - epsilon, 0, 0])
    np.testing.assert_allclose(shares(EpsilonGreedy(final_step=0), own=epsilon), expected, atol=0.015)


def test_epsilon_is_that_of_the_opt_steps() -> None:
    found = shares(EpsilonGreedy(start=1.0, final_step=10), opt_steps=5, own=0.0)
    np.testing.assert_allclose(found, [0.125, 0.625, 0.125, 0.125], atol=0.015)


# Softmax.


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_softmax_chooses_with_the_probabilities_of_boltzmann(temperature: float) -> None:
    boltzmann = np.exp(VALUES[0] / temperature) / np.exp(VALUES[0] / temperature).sum()
    found = shares(Softmax(temperature=temperature))
    np.testing.assert_allclose(found, boltzmann, atol=4 * np.sqrt(boltzmann * (1 - boltzmann) / 20_000).max())


def test_softmax_of_values_however_large_or_small_stays_a_choice() -> None:
    assert shares(Softmax(), np.array([[1e30, -1e30]])).tolist() == [1.0, 0.0]
    assert shares(Softmax(temperature=1e-30), VALUES.astype(np.float64)).tolist() == [0.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(shares(Softmax(temperature=1e30)), 0.25, atol=0.015)


def test_each_row_is_chosen_by_its_own_values() -> None:
    values = np.diag([100.0, 100.0, 100.0])
    assert Softmax().choose(values, 0, 0.0, np.random.default_rng(0)).tolist() == [0, 1, 2]


def test_an_explorer_by_itself_draws_the_number_that_it_draws_among_others() -> None:
    chances, other = np.random.default_rng(0), np.random.default_rng(0)
    for n in (1, 2, 8) * 20:
        values = np.tile(VALUES, (n, 1))
        expected = values.argmax(axis=1)
        explorers = np.flatnonzero(other.random(n) < 0.3)
        expected[explorers] = other.integers(4, size=len(explorers))
        assert choose_mostly_best(values, 0.3, chances).tolist() == expected.tolist()


# Of some lanes.


@pytest.mark.parametrize("explorer", [EpsilonGreedy(final_step=0), Softmax(temperature=2.0), Greedy()])
def test_some_lanes_explore_with_the_same_shares(explorer: EpsilonGreedy | Softmax | Greedy) -> None:
    lanes = np.arange(20_000)
    actions = explorer.choose(VALUES.repeat(len(lanes), axis=0), 0, 0.4, LaneRandom(0).of(lanes))
    expected = shares(explorer, own=0.4)
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / len(lanes), expected, atol=0.015)


@pytest.mark.parametrize("explorer", [EpsilonGreedy(final_step=0), Softmax(temperature=2.0)])
def test_a_lane_explores_the_same_alone_and_beside_others(explorer: EpsilonGreedy | Softmax) -> None:
    beside, alone = LaneRandom(0), LaneRandom(0)
    for k in (1, 3, 8) * 10:
        lanes = np.roll(np.arange(k), k // 2)
        actions = explorer.choose(VALUES.repeat(k, axis=0), 0, 0.9, beside.of(lanes))
        assert actions[lanes == 0] == explorer.choose(VALUES, 0, 0.9, alone.of(lanes[lanes == 0]))


# Greedy, and evaluations.


def test_the_greedy_explorer_takes_the_best_action_at_every_epsilon() -> None:
    assert shares(Greedy(), own=1.0).tolist() == [0, 1, 0, 0]


def test_an_evaluation_takes_random_actions_with_probability_epsilon() -> None:
    actions = EvaluationEpsilon(0.4).choose(VALUES.repeat(20_000, axis=0))
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, [0.1, 0.7, 0.1, 0.1], atol=0.015)


def test_evaluations_have_the_same_chances_and_their_episodes_others() -> None:
    values, found = VALUES.repeat(100, axis=0), []
    evaluation = EvaluationEpsilon(0.5)
    for _ in range(2):
        evaluation.begin()
        found.append([evaluation.choose(values).tolist() for _ in range(2)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_evaluations_have_the_same_chances_in_a_lane_alone_and_beside_others() -> None:
    values, evaluation, found = VALUES.repeat(3, axis=0), EvaluationEpsilon(0.5), []
    for lanes in (np.array([4, 1, 2]), np.array([1])):
        evaluation.begin()
        rows = [evaluation.choose(values[: len(lanes)], lanes)[lanes == 1] for _ in range(20)]
        found.append(np.concatenate(rows).tolist())
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("n", [1, 6000])
def test_random_actions_are_uniform_among_the_allowed_ones(by_lane: bool, n: int) -> None:
    values = np.tile(np.array([[1, NOT_ALLOWED, 2, NOT_ALLOWED, 0]], np.float32), (n, 1))
    lanes, rng = LaneRandom(0), np.random.default_rng(0)
    found = [choose_mostly_best(values, 1.0, lanes.of(np.arange(n)) if by_lane else rng) for _ in range(6000 // n)]
    counts = np.bincount(np.concatenate(found), minlength=5)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert all(abs(count - 2000) < 200 for count in counts[[0, 2, 4]])
