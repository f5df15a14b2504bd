"""What PPO and IMPALA share; their own tests show that both learn, act and record by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, Space

from common.agents.impala import IMPALA, IMPALAConfig
from common.agents.policy_gradient import PolicyGradientAgent
from common.agents.ppo import PPO, PPOConfig
from common.data import Items
from common.errors import ConfigError
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory
from tests.common.agents import test_impala, test_ppo

CHOICES = EnvSpec(Box(-1, 1, (2,), np.float32), Discrete(3, start=5))


class PatientIMPALAConfig(IMPALAConfig):
    patience: int = 7


class PatientIMPALA(IMPALA):
    Config = PatientIMPALAConfig


class PatientPPOConfig(PPOConfig):
    patience: int = 7


class PatientPPO(PPO):
    Config = PatientPPOConfig


@pytest.mark.parametrize("kind", [PatientIMPALA, PatientPPO])
def test_a_class_that_derives_from_an_agent_has_the_settings_of_its_own_config(kind: type[PolicyGradientAgent]) -> None:
    agent = kind(CHOICES, seed=0, units=(8,), patience=9)
    assert isinstance(agent.config, kind.Config)
    assert agent.config.model_dump()["patience"] == 9


@pytest.mark.parametrize("kind", [IMPALA, PPO])
@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (Box(-np.inf, np.inf, (2,)), ".*finite bounds"),
        (MultiBinary(4), "expected a Discrete, MultiDiscrete or Box action space"),
    ],
)
def test_spaces_they_cannot_act_in_are_refused(
    kind: type[PolicyGradientAgent], actions: Space[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}: {message}"):
        kind(EnvSpec(CHOICES.observation_space, actions), seed=0)


@pytest.mark.parametrize(("module", "memory"), [(test_impala, test_impala.InOrder), (test_ppo, test_ppo.Whole)])
def test_rewards_are_normalised_by_the_returns_so_far(module: Any, memory: type[ItemMemory]) -> None:
    agent = module.make(normalize_rewards=True)
    items: Items = module.played(agent)
    with pytest.raises(ConfigError, match="needs a column info/discounted_return"):
        agent.opt(memory(items))
    returns = np.cumsum(items["reward"], axis=1) * 100
    assert agent.opt(memory(items | {"info/discounted_return": returns})) is not None
    assert float(agent.normalizer.return_var) == pytest.approx(float(returns.var()), rel=1e-3)
