from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from common.agents.td3 import TD3
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory
from tests.common.agents.parts import copies, fix_outputs, holding, same

SPEC = EnvSpec(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32))
ZERO = np.zeros(2, np.float32)


def make(**params: Any) -> TD3:
    defaults: dict[str, Any] = {"units": (), "batch_size": 8, "lr": 0.01, "random_opts": 0}
    return TD3(SPEC, seed=0, **(defaults | params))


def memory() -> ItemMemory:
    return holding([(ZERO, (0.5,), 1.0, ZERO, False, False)], np.float32)


def next_actions(agent: TD3, n: int = 5000) -> Array:
    """The actions that the target critics are asked about: they answer with the action itself."""
    for net in agent.critics_tgt.nets:
        fix_outputs(net, 0.0)
        with torch.no_grad():
            next(net.parameters())[0, -1] = 1.0
    obs = torch.zeros(n, 2)
    action, cost = agent._next_action(obs)
    found: Array = agent._following(agent.critics_tgt.outputs(obs, action), cost).values.detach().numpy()
    return found


# The delayed policy.


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_move_at_every_delayth_update_and_stay_between(delay: int) -> None:
    agent = make(policy_delay=delay)
    for update in range(1, 8):
        before = [copies(net) for net in (agent.actor, agent.actor_tgt, agent.critics_tgt)]
        critics = copies(agent.critics)
        record = agent.opt(memory())
        assert record is not None
        due = update % delay == 0
        after = [copies(net) for net in (agent.actor, agent.actor_tgt, agent.critics_tgt)]
        assert [not same(old, new) for old, new in zip(before, after, strict=True)] == [due] * 3, f"update {update}"
        assert not same(copies(agent.critics), critics)
        assert set(record) == {"loss_critic", "q_mean"} | ({"loss_actor"} if due else set())


def test_the_delay_counts_updates_and_not_opt_steps() -> None:
    agent = make(policy_delay=2, n_updates_per_opt=2)
    for _ in range(3):
        before = copies(agent.actor)
        record = agent.opt(memory())
        assert record is not None
        assert "loss_actor" in record
        assert not same(copies(agent.actor), before)


def test_the_actors_loss_is_minus_the_first_critics_value_of_its_action() -> None:
    """arXiv:1802.09477, algorithm 1."""
    agent = make()
    for net, value in zip(agent.critics.nets, (3.0, -100.0), strict=True):
        fix_outputs(net, value)
        with torch.no_grad():
            next(net.parameters())[0, -1] = 2.0  # Q(s, a) = value + 2 a
    fix_outputs(agent.actor, 0.5)
    record = agent._improve_actor({"obs": torch.zeros(4, 2)})
    assert float(record["loss_actor"]) == pytest.approx(-(3.0 + 2.0 * math.tanh(0.5)))


def test_the_actor_climbs_the_first_critic() -> None:
    agent = make(policy_delay=1)
    first, second = agent.critics.nets
    fix_outputs(first, 0.0)
    fix_outputs(second, -100.0)
    with torch.no_grad():
        next(first.parameters())[0, -1] = 1.0
    fix_outputs(agent.actor, 0.0)
    for _ in range(50):
        agent._improve_actor({"obs": torch.zeros(4, 2)})
    assert agent.sample(ZERO[None]).item() > 0.3


def test_the_target_actor_follows_by_tau() -> None:
    agent = make(policy_delay=1, tau=0.25)
    before = copies(agent.actor_tgt)
    agent.opt(memory())
    slow = [0.75 * old + 0.25 * new for old, new in zip(before, copies(agent.actor), strict=True)]
    torch.testing.assert_close(copies(agent.actor_tgt), slow)


# Noise.


def test_the_target_policys_noise_is_clipped() -> None:
    agent = make(target_noise=0.2, target_noise_clip=0.3)
    fix_outputs(agent.actor_tgt, 0.0)
    actions = next_actions(agent)
    assert abs(actions).max() == pytest.approx(0.3)
    inner = abs(actions) < 0.299
    assert inner.mean() == pytest.approx(0.866, abs=0.02)  # Within 1.5 standard deviations.


def test_noisy_target_actions_stay_in_bounds() -> None:
    agent = make(target_noise=0.2, target_noise_clip=0.5)
    fix_outputs(agent.actor_tgt, 3.0)
    actions = next_actions(agent)
    assert actions.max() == 1.0
    assert actions.min() < 0.8


def test_without_noise_the_next_action_is_the_target_actors() -> None:
    agent = make(target_noise=0.0)
    fix_outputs(agent.actor_tgt, 0.5)
    fix_outputs(agent.actor, -0.5)
    assert next_actions(agent) == pytest.approx(np.tanh(0.5))


def test_a_clip_of_noise_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="give target_noise: 0 or target_noise_clip, not both"):
        make(target_noise=0.0, target_noise_clip=0.3)


@pytest.mark.parametrize("std", [0.05, 0.2])
def test_exploration_has_the_noise_asked_for_around_the_policy(std: float) -> None:
    agent = make(exploration_noise=std)
    fix_outputs(agent.actor, 0.3)
    agent.train()
    actions = agent.sample(np.zeros((20_000, 2), np.float32))
    assert actions.mean() == pytest.approx(np.tanh(0.3), abs=0.01)
    assert actions.std() == pytest.approx(std, rel=0.03)


def test_the_actors_epsilon_changes_nothing() -> None:
    agents = [TD3(SPEC, seed=0, epsilon=epsilon) for epsilon in (0.0, 1.0)]
    for agent in agents:
        agent.train()
    first, second = (agent.sample(np.zeros((10, 2), np.float32)).tolist() for agent in agents)
    assert first == second
