from __future__ import annotations

import math

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.distributions import Categorical, Normal

from common.agents.networks.action_distributions import Categoricals
from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.layers import Mlp
from common.agents.networks.policies import (
    CategoricalPolicy,
    GaussianConfig,
    GaussianPolicy,
    LikeliestAction,
    PolicyAndBaseline,
)
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from tests.common.agents.parts import fix_outputs

# Random ones.


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def gaussian(*means: float, lstd: float = 0.0, **limits: float) -> GaussianPolicy:
    """A policy with these means before tanh, whatever it observes."""
    policy = GaussianPolicy(Mlp((3,), len(means), ()), len(means), GaussianConfig(**limits))
    fix_outputs(policy.mean, *means)
    policy.lstd.data.fill_(lstd)
    return policy


@torch.no_grad()
def test_the_log_probability_is_that_of_a_normal_distribution_around_tanh() -> None:
    policy = gaussian(0.5, -2.0, lstd=-0.7)
    action = torch.tensor([[0.1, 0.2], [-1.0, 1.0]])
    normal = Normal(torch.tensor([0.5, -2.0]).tanh(), math.exp(-0.7))
    slow = normal.log_prob(action).sum(dim=1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(policy.log_prob(torch.zeros(2, 3), action), slow)


def test_actions_at_the_bounds_have_finite_likelihoods_and_gradients() -> None:
    policy = gaussian(50.0, lstd=-50.0)
    log_prob = policy.log_prob(torch.zeros(2, 3), torch.tensor([[1.0], [-1.0]]))
    log_prob.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(log_prob).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in policy.parameters())


@pytest.mark.parametrize(("asked", "held"), [(-9.0, -4.0), (5.0, -1.5), (-2.0, -2.0)])
@torch.no_grad()
def test_the_standard_deviation_is_kept_within_its_limits(asked: float, held: float) -> None:
    drawn = gaussian(0.2, lstd=asked, min_lstd=-4.0, max_lstd=-1.5).sample(torch.zeros(20_000, 3), generator())
    assert drawn.mean().item() == pytest.approx(math.tanh(0.2), abs=0.01)
    assert drawn.std().item() == pytest.approx(math.exp(held), rel=0.03)


@pytest.mark.parametrize("limits", [{"max_lstd": -1.3}, {"min_lstd": 0.7}])
def test_a_standard_deviation_whose_limits_leave_out_1_is_learnt(limits: dict[str, float]) -> None:
    policy = GaussianPolicy(Mlp((3,), 2, ()), 2, GaussianConfig(**limits))
    obs = torch.zeros(4, 3)
    (-policy.log_prob(obs, policy.greedy(obs).detach()).sum()).backward()  # type: ignore[no-untyped-call]
    assert policy.lstd.grad is not None
    assert (policy.lstd.grad != 0).all()


@torch.no_grad()
def test_drawn_actions_are_clipped_and_the_greedy_one_is_tanh_of_the_mean() -> None:
    policy = gaussian(0.5, -0.5)
    drawn = policy.sample(torch.zeros(1000, 3), generator())
    assert (drawn.min().item(), drawn.max().item()) == (-1.0, 1.0)
    torch.testing.assert_close(policy.greedy(torch.zeros(1, 3)), torch.tensor([[0.5, -0.5]]).tanh())


def test_limits_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_lstd \(3\.0\) is above max_lstd \(2\.0\)"):
        validate(GaussianConfig, {"min_lstd": 3.0}, "agent.params")


@torch.no_grad()
def test_a_categorical_policy_draws_and_scores_by_its_logits() -> None:
    allowed = AllowedActions(EnvSpec(Box(-1, 1, (3,)), Discrete(3)))
    policy, obs = CategoricalPolicy(Mlp((3,), 3, ()), allowed), torch.zeros(30_000, 3)
    fix_outputs(policy.logits, 0.0, 1.0, -1.0)
    shares = Categorical(logits=torch.tensor([0.0, 1.0, -1.0])).probs
    drawn = policy.sample(obs, generator())
    torch.testing.assert_close(drawn.bincount() / len(obs), shares, rtol=0.0, atol=0.01)
    torch.testing.assert_close(policy.log_prob(obs[:3], torch.arange(3)), shares.log())


@torch.no_grad()
def test_policy_and_baseline_part_in_the_last_layer_and_the_likeliest_action_is_one_of_the_space() -> None:
    actions = Categoricals(Discrete(3, start=5))
    policy = PolicyAndBaseline(Mlp((2,), 4, ()), actions)
    fix_outputs(policy.net, 0.0, 2.0, 1.0, -7.0)
    outputs, value = policy(torch.zeros(6, 2))
    assert outputs.tolist() == [[0.0, 2.0, 1.0]] * 6
    assert value.tolist() == [-7.0] * 6
    assert LikeliestAction(policy, policy.actions)(torch.zeros(6, 2)).tolist() == [6] * 6
