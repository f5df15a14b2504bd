"""What PPO and IMPALA share; their own tests show that both learn and act by it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, Space

from common.agents.impala import IMPALA, IMPALAConfig
from common.agents.policy_gradient import PolicyGradientAgent
from common.agents.ppo import PPO, PPOConfig
from common.data import Items
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.parts import row_schema
from common.plugins.part_config import EnvConfig
from crossborder.testing import ItemMemory
from tests.common.agents import test_impala, test_ppo
from tests.common.agents.parts import Whole, assert_same_state, copies, same
from tests.common.agents.test_network_agent import through_a_file

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


EACH = pytest.mark.parametrize("module", [test_impala, test_ppo], ids=["IMPALA", "PPO"])


@EACH
def test_rewards_are_normalised_by_the_returns_so_far(module: Any) -> None:
    agent = module.make(normalize_rewards=True)
    items: Items = module.played(agent)
    with pytest.raises(ConfigError, match="needs a column info/discounted_return"):
        agent.opt(Whole(items))
    returns = np.cumsum(items["reward"], axis=1) * 100
    assert agent.opt(Whole(items | {"info/discounted_return": returns})) is not None
    assert float(agent.normalizer.return_var) == pytest.approx(float(returns.var()), rel=1e-3)


@EACH
@pytest.mark.parametrize("spec", [CHOICES, test_ppo.LEVERS], ids=["Discrete", "Box"])
def test_a_resumed_agent_learns_and_acts_as_one_that_was_never_interrupted(
    module: Any, spec: EnvSpec, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"clip_schedule": {"steps": 50}} if module is test_ppo else {}
    agent, resumed = (
        module.make(spec, seed=seed, normalize_observations=True, update="captured", **settings) for seed in (0, 9)
    )
    memory = Whole(module.played(agent))
    for _ in range(3):
        agent.opt(memory)
    resumed.load_training_state(through_a_file(agent.training_state(), tmp_path / "state"))
    resumed.train()
    for each in (agent, resumed):
        for _ in range(3):
            each.opt(memory)
    assert_same_state(agent, resumed)
    obs = module.played(copy.deepcopy(agent))["obs"][:, 0]
    np.testing.assert_array_equal(agent.sample(obs), resumed.sample(obs))


@EACH
def test_an_empty_memory_changes_nothing(module: Any) -> None:
    agent = module.make()
    before = copies(agent.policy_net)
    assert agent.opt(ItemMemory({"obs": np.empty(0, np.float32)})) is None
    assert same(copies(agent.policy_net), before)


@pytest.mark.parametrize(
    ("module", "settings"),
    [(test_impala, {}), (test_ppo, {}), (test_ppo, {"share_layers": True})],
    ids=["IMPALA", "PPO", "PPO with shared layers"],
)
def test_the_exported_policy_takes_the_likeliest_action(module: Any, settings: dict[str, Any]) -> None:
    agent = module.make(test_ppo.SWITCHES, normalize_observations=True, **settings)
    agent.opt(Whole(module.played(agent)))
    obs = np.random.default_rng(1).uniform(-1, 1, (20, 2)).astype(np.float32)
    agent.eval()
    np.testing.assert_array_equal(agent.policy()(torch.from_numpy(obs)).numpy(), agent.sample(obs))


@EACH
def test_its_rows_have_a_log_probability_and_for_continuous_actions_the_choice_before_it_was_clipped(
    module: Any,
) -> None:
    names = {c.name for c in row_schema(CHOICES, module.make(), EnvConfig(target="x:y")).columns}
    assert "log_prob" in names
    assert "choice" not in names
    columns = row_schema(test_ppo.LEVERS, module.make(test_ppo.LEVERS), EnvConfig(target="x:y")).by_name
    assert columns["choice"].shape == (2,)
