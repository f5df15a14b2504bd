from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from common.agents.networks.action_distributions import Categoricals, Gaussians, make_distribution
from common.errors import ConfigError

CPU = torch.device("cpu")
LEVERS = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
SWITCHES = MultiDiscrete([2, 3], start=[0, 5])


def categoricals(space: Discrete | MultiDiscrete) -> Categoricals:
    made = make_distribution("X", space, CPU, -5, 2)
    assert isinstance(made, Categoricals)
    return made


def gaussians(space: Box = LEVERS) -> Gaussians:
    made = make_distribution("X", space, CPU, -5, 2)
    assert isinstance(made, Gaussians)
    return made


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_choices_of_a_discrete_action_come_as_often_as_the_softmax_says() -> None:
    logits = torch.tensor([0.0, math.log(2.0), math.log(5.0)])
    drawn = categoricals(Discrete(3)).sample(logits.expand(8000, 3), generator())
    assert drawn.shape == (8000, 1)
    shares = [float((drawn == n).float().mean()) for n in range(3)]
    assert shares == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.02)


def test_a_policy_that_has_diverged_still_draws_choices_so_that_its_losses_are_recorded() -> None:
    drawn = categoricals(SWITCHES).sample(torch.full((4, 5), math.nan), generator())
    assert drawn.tolist() == [[0, 0]] * 4


def test_log_probabilities_and_entropies_of_components_add_up() -> None:
    outputs = torch.tensor([[0.3, -0.2, 1.0, 0.0, -1.0]])
    first, second = outputs[0, :2].softmax(0), outputs[0, 2:].softmax(0)
    distribution = categoricals(SWITCHES)
    assert (distribution.n_outputs, distribution.n_dims) == (5, 2)
    for a in range(2):
        for b in range(3):
            found = distribution.log_prob(outputs, torch.tensor([[a, b]]))
            assert float(found) == pytest.approx(math.log(first[a] * second[b]), rel=1e-5)
    slow = -sum(float(p) * math.log(p) for p in (*first, *second))
    assert float(distribution.entropy(outputs)) == pytest.approx(slow, rel=1e-5)
    assert distribution.likeliest(outputs).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("space", "choice", "action"),
    [
        (Discrete(3, start=5), [[0], [2]], [5, 7]),
        (SWITCHES, [[0, 0], [1, 2]], [[0, 5], [1, 7]]),
        (MultiDiscrete(np.array([[2, 3], [2, 2]])), [[1, 2, 0, 1]], [[[1, 2], [0, 1]]]),
    ],
)
def test_choices_become_actions_of_the_space_and_actions_choices(
    space: Discrete | MultiDiscrete, choice: list[list[int]], action: list[object]
) -> None:
    distribution = categoricals(space)
    found = distribution.to_env(torch.tensor(choice)).numpy()
    assert found.tolist() == action
    assert found.dtype == space.dtype
    assert all(space.contains(one) for one in found)
    features = distribution.features(torch.tensor(choice))
    assert features.shape == (len(choice), distribution.n_outputs)
    again = distribution.likeliest(features)
    assert again.tolist() == choice, "one-hot"
    there = torch.ones(len(choice), dtype=torch.bool)
    assert distribution.from_env(torch.from_numpy(found), there).tolist() == choice
    assert not distribution.from_env(torch.full_like(torch.from_numpy(found), -9), ~there).any()


@torch.no_grad()
def test_the_density_of_a_gaussian_choice_is_that_of_the_number_before_it_is_clipped() -> None:
    distribution = gaussians()
    distribution.lstd.copy_(torch.tensor([math.log(0.5), math.log(2.0)]))
    mean, choice = torch.tensor([[0.25, -1.0]]), torch.tensor([[1.75, 3.0]])

    def density(x: float, mu: float, std: float) -> float:
        return math.exp(-0.5 * ((x - mu) / std) ** 2) / (std * math.sqrt(2 * math.pi))

    slow = math.log(density(1.75, 0.25, 0.5) * density(3.0, -1.0, 2.0))
    assert float(distribution.log_prob(mean, choice)) == pytest.approx(slow, rel=1e-5)
    entropy = sum(0.5 * math.log(2 * math.pi * math.e * std**2) for std in (0.5, 2.0))
    assert float(distribution.entropy(mean)) == pytest.approx(entropy, rel=1e-5)
    assert distribution.to_env(choice).tolist() == [[2.0, 10.0]]
    assert distribution.to_env(distribution.likeliest(mean)).tolist() == [[0.5, 0.0]]


@torch.no_grad()
def test_gaussian_choices_have_the_mean_and_the_deviation_of_the_policy() -> None:
    distribution = gaussians()
    distribution.lstd.fill_(math.log(0.5))
    drawn = distribution.sample(torch.tensor([[0.3, -0.7]]).expand(8000, 2), generator())
    assert drawn.mean(dim=0).tolist() == pytest.approx([0.3, -0.7], abs=0.03)
    assert drawn.std(dim=0).tolist() == pytest.approx([0.5, 0.5], abs=0.03)


@torch.no_grad()
def test_a_deviation_stays_within_its_limits() -> None:
    distribution = gaussians()
    distribution.lstd.copy_(torch.tensor([-100.0, 100.0]))
    entropy = float(distribution.entropy(torch.zeros(1, 2)))
    assert entropy == pytest.approx(-5 + 2 + math.log(2 * math.pi * math.e), rel=1e-5)


@pytest.mark.parametrize("space", [MultiBinary(3), Box(-np.inf, np.inf, (2,), np.float32)])
def test_other_spaces_are_refused(space: MultiBinary | Box) -> None:
    with pytest.raises(ConfigError, match=r"^X: expected"):
        make_distribution("X", space, CPU, -5, 2)


def test_the_leaves_of_a_dict_are_independent_of_each_other() -> None:
    """A log-probability by hand: a softmax of two, a Gaussian of two dimensions, and a softmax of three."""
    space = Dict({"a": Discrete(2, start=1), "b": LEVERS, "c": Discrete(3)})
    distribution = make_distribution("X", space, CPU, -5, 2)
    assert (distribution.n_outputs, distribution.n_dims) == (7, 4)
    with torch.no_grad():
        next(distribution.parameters()).copy_(torch.tensor([0.5, -1.0]))
    outputs = torch.tensor([[0.3, -0.2, 0.1, -0.4, 1.0, 0.0, -1.0]])
    choice = torch.tensor([[1.0, 0.7, -1.5, 2.0]])
    a, c = outputs[0, :2].softmax(0), outputs[0, 4:].softmax(0)
    b = [(0.7, 0.1, 0.5), (-1.5, -0.4, -1.0)]
    density = sum(-0.5 * ((x - mean) / math.exp(lstd)) ** 2 - lstd - 0.5 * math.log(2 * math.pi) for x, mean, lstd in b)
    distribution.requires_grad_(False)
    slow = math.log(a[1]) + density + math.log(c[2])
    assert float(distribution.log_prob(outputs, choice)) == pytest.approx(slow, rel=1e-5)
    entropy = sum(lstd + 0.5 * math.log(2 * math.pi * math.e) for _, _, lstd in b)
    entropy -= sum(float(p) * math.log(p) for p in (*a, *c))
    assert float(distribution.entropy(outputs)) == pytest.approx(entropy, rel=1e-5)
    assert distribution.likeliest(outputs).tolist()[0] == pytest.approx([0, 0.1, -0.4, 0])
    assert distribution.features(choice).tolist()[0] == pytest.approx([0, 1, 0.7, -1, 0, 0, 1])
    actions = distribution.to_env(choice)
    assert isinstance(actions, dict)
    assert {path: leaf.tolist() for path, leaf in actions.items()} == {
        "a": [2],
        "b": [pytest.approx([1.4, 0.0])],
        "c": [2],
    }
    assert [actions[path].dtype for path in "abc"] == [torch.int64, torch.float32, torch.int64]
    drawn = distribution.sample(outputs.expand(4000, 7), generator())
    assert drawn.mean(dim=0).tolist() == pytest.approx([float(a[1]), 0.1, -0.4, float(c[1] + 2 * c[2])], abs=0.06)


@pytest.mark.parametrize(("low", "high"), [(-5.0, -1.3), (0.7, 2.0)])
def test_a_standard_deviation_whose_limits_leave_out_1_is_learnt(low: float, high: float) -> None:
    made = make_distribution("X", LEVERS, CPU, low, high)
    assert isinstance(made, Gaussians)
    made.entropy(torch.zeros(4, 2)).sum().backward()  # type: ignore[no-untyped-call]
    assert made.lstd.grad is not None
    assert (made.lstd.grad != 0).all()
