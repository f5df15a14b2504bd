from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from common.agents.sac import SAC, SAMPLES, SACConfig
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from crossborder.testing import ItemMemory
from tests.common.agents.parts import fix_outputs, holding

SPEC = EnvSpec(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32))
ZERO = np.zeros(2, np.float32)


def make(**params: Any) -> SAC:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    defaults: dict[str, Any] = {"units": (), "batch_size": 8, "lr": 0.01, "random_opts": 0, "update": "eager"}
    return SAC(SPEC, seed=0, **(defaults | params))


def memory() -> ItemMemory:
    return holding([(ZERO, (0.5,), 1.0, ZERO, False, False)], np.float32)


def drawn(agent: SAC, mean: float, log_std: float, n: int = 20_000) -> Array:
    """What the policy draws before tanh where the actor's outputs are these."""
    fix_outputs(agent.actor, mean, log_std)
    agent.train()
    return np.arctanh(agent.sample(np.zeros((n, 2), np.float32)).astype(np.float64))[:, 0]


# The policy.


@pytest.mark.parametrize("log_std", [-3.0, -2.0, -1.0])
def test_the_actors_second_output_is_the_logarithm_of_the_standard_deviation(log_std: float) -> None:
    raw = drawn(make(), 0.3, log_std)
    assert raw.mean() == pytest.approx(0.3, abs=0.02)
    assert raw.std() == pytest.approx(math.exp(log_std), rel=0.03)


@pytest.mark.parametrize(("asked", "held"), [(-9.0, -4.0), (5.0, -1.0), (-2.0, -2.0)])
def test_the_standard_deviation_is_kept_within_its_limits(asked: float, held: float) -> None:
    agent = make(min_lstd=-4.0, max_lstd=-1.0)
    assert drawn(agent, 0.0, asked).std() == pytest.approx(math.exp(held), rel=0.03)


def test_the_next_value_is_paid_for_the_entropy_of_the_policy() -> None:
    agent = make(ent_coef=2.0, auto_ent_coef=False)
    fix_outputs(agent.actor, 0.3, -0.5)
    for net, value in zip(agent.critics_tgt.nets, (5.0, 3.0), strict=True):
        fix_outputs(net, value)
    normal = torch.distributions.Normal(torch.tensor([0.3]), torch.tensor([math.exp(-0.5)]))
    policy = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=1))
    torch.manual_seed(0)
    samples = policy.sample(torch.Size((50_000,)))  # type: ignore[no-untyped-call]
    entropy = -policy.log_prob(samples).mean()  # type: ignore[no-untyped-call]
    obs = torch.zeros(50_000, 2)
    action, cost = agent._next_action(obs)
    found = agent._following(agent.critics_tgt.outputs(obs, action), cost).values
    assert found.mean().item() == pytest.approx(3.0 + 2.0 * float(entropy), abs=0.04)


def test_a_rewarded_entropy_widens_the_policy_and_an_unrewarded_does_not() -> None:
    """Critics know nothing, so that the actor follows the entropy alone."""
    agent = make(ent_coef=1.0, auto_ent_coef=False)
    for net in agent.critics.nets:
        fix_outputs(net, 0.0)
    fix_outputs(agent.actor, 0.0, -3.0)
    obs = torch.zeros(64, 2)
    entropies = [float(agent._improve_actor({"obs": obs})["entropy"]) for _ in range(100)]
    assert entropies[-1] > entropies[0] + 0.5


def test_the_actors_loss_and_entropy_are_those_of_the_paper() -> None:
    """arXiv:1812.05905, 7: the mean of ``alpha log pi(a|s) - min_i Q_i(s, a)``, for actions drawn by the policy."""
    agent = SAC(EnvSpec(SPEC.observation_space, Box(-1, 1, (3,))), seed=0, units=(8,), ent_coef=0.3, update="eager")
    obs, generator = torch.rand(16, 2), torch.Generator()
    generator.set_state(agent._generator.get_state())
    with torch.no_grad():
        mean, log_std = agent.actor(obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = mean + log_std.exp() * torch.randn(16, 3, generator=generator)
        q = torch.stack([net(torch.cat((obs, raw.tanh()), dim=1))[:, 0] for net in agent.critics.nets])
    density = normal.log_prob(raw) - torch.log(1 - raw.tanh() ** 2)  # type: ignore[no-untyped-call]
    log_prob = density.sum(dim=1)
    record = agent._improve_actor({"obs": obs})
    assert float(record["loss_actor"]) == pytest.approx(float((0.3 * log_prob - q.amin(dim=0)).mean()), rel=1e-5)
    assert float(record["entropy"]) == pytest.approx(-float(log_prob.mean()), rel=1e-5)


# The entropy coefficient.


@pytest.mark.parametrize(("target_entropy", "direction"), [(5.0, 1), (-50.0, -1)])
def test_the_coefficient_rises_below_the_target_entropy_and_falls_above(target_entropy: float, direction: int) -> None:
    agent = make(target_entropy=target_entropy, ent_coef=0.5)
    found = []
    for _ in range(10):
        record = agent.opt(memory())
        assert record is not None
        found.append(float(record["ent_coef"]))
    assert found[0] == pytest.approx(0.5)
    assert (np.diff(found) * direction > 0).all()
    assert min(found) > 0


def test_a_fixed_coefficient_stays() -> None:
    agent = make(ent_coef=0.5, auto_ent_coef=False)
    for _ in range(5):
        agent.opt(memory())
    assert agent.ent_coef().item() == pytest.approx(0.5)


def test_the_coefficients_learning_rate_is_its_own_if_given() -> None:
    """Adam's first step is as long as the learning rate."""
    moved = []
    for own in ({}, {"ent_coef_lr": 0.1}):
        agent = make(lr=0.01, **own)
        agent.opt(memory())
        moved.append(abs(agent.ent_coef.log.item()))
    assert moved == pytest.approx([0.01, 0.1], rel=1e-3)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_the_target_entropy_is_minus_the_dimensions_of_an_action(shape: tuple[int, ...]) -> None:
    spec = EnvSpec(SPEC.observation_space, Box(-1, 1, shape))
    assert SAC(spec, seed=0).target_entropy == -math.prod(shape)
    assert SAC(spec, seed=0, target_entropy=0.0).target_entropy == 0.0


@pytest.mark.parametrize("n", [1, 3])
def test_the_target_entropy_may_be_that_of_a_gaussian(n: int) -> None:
    spec = EnvSpec(SPEC.observation_space, Box(-1, 1, (n,)))
    gaussian = torch.distributions.Normal(torch.zeros(n), torch.full((n,), 0.15))
    expected = gaussian.entropy().sum().item()  # type: ignore[no-untyped-call]
    assert SAC(spec, seed=0, target_std=0.15).target_entropy == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("other", [{"target_entropy": -1.0}, {"auto_ent_coef": False}])
def test_a_second_target_entropy_or_one_without_effect_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="target_std"):
        validate(SACConfig, {"target_std": 0.15, **other})


# The rest.


def test_it_records_what_the_page_describes() -> None:
    record = make().opt(memory())
    assert record is not None
    assert set(record) == {"loss_critic", "loss_actor", "q_mean", "ent_coef", "entropy"}
    assert all(math.isfinite(value) for value in record.values())


def test_limits_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_lstd \(3\.0\) is above max_lstd \(2\.0\)"):
        validate(SACConfig, {"min_lstd": 3.0}, "agent.params")


# Conservative Q-learning.


def test_conservative_critics_value_actions_lower_that_are_not_in_the_data() -> None:
    """All rewards are 1, but the data has actions between 0.4 and 0.6 alone."""
    actions = np.linspace(0.4, 0.6, 32)
    items = holding([(ZERO, (action,), 1.0, ZERO, True, False) for action in actions], np.float32)
    gaps = []
    for conservatism in (None, 1.0):
        agent = make(units=(32,), batch_size=32, conservatism=conservatism, update="captured")
        for _ in range(200):
            agent.opt(items)
        with torch.no_grad():
            values = agent.critics(torch.zeros(2, 2), torch.tensor([[0.5], [-0.9]])).mean(dim=0)
        gaps.append(float(values[0] - values[1]))
    assert gaps[1] > gaps[0] + 1


def test_sampled_actions_count_by_their_probability_densities() -> None:
    """With critics that are 0 everywhere, a value is minus a density's logarithm; that of uniform actions is -log 2."""
    agent = make(conservatism=1.0)
    fix_outputs(agent.actor, 0.3, -0.5)
    for net in agent.critics.nets:
        fix_outputs(net, 0.0)
    others = agent._value_samples(torch.zeros(400, 2), torch.zeros(400, 2)).detach()
    assert others.shape == (2, 3 * SAMPLES, 400)
    uniform, now, later = others[0].view(3, SAMPLES, -1)
    torch.testing.assert_close(uniform, torch.full_like(uniform, math.log(2)))
    raw = 0.3 + math.exp(-0.5) * np.random.default_rng(0).standard_normal(40_000)
    log_density = -np.square(raw - 0.3) / (2 * math.exp(-1)) + 0.5 - 0.5 * math.log(2 * math.pi)
    entropy = float((np.log1p(-np.square(np.tanh(raw))) - log_density).mean())
    assert float(now.mean()) == pytest.approx(entropy, abs=0.05)
    assert float(later.mean()) == pytest.approx(entropy, abs=0.05)
