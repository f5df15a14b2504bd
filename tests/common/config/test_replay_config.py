"""The replay's part of the configuration names a buffer, a view and sources that fit one another."""

from __future__ import annotations

from typing import Any

import pytest

from common.agents.dqn import DQN
from common.config.replay_config import ReplayConfig, discount_of
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.plugins.part_config import PluginConfig
from common.settings import validate


def with_view(**params: Any) -> ReplayConfig:
    return validate(ReplayConfig, {"view": {"params": params}})


def test_a_view_with_a_discount_factor_of_its_own_is_refused_beside_an_agent_that_has_one() -> None:
    message = r"replay\.view\.params\.discount_factor: remove it: a view uses the agent's discount factor, 0\.8"
    with pytest.raises(ConfigError, match=message):
        with_view(n=3, discount_factor=0.99).check(PluginConfig(target=OWN))
    with_view(n=3, discount_factor=0.99).check(PluginConfig(target=NONE))
    with_view(n=3).check(PluginConfig(target=OWN))


def test_a_view_with_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replay\.view\.params\.steps: unknown parameter"):
        with_view(steps=3).check(PluginConfig(target=OWN))


@pytest.mark.parametrize("name", ["two words", "a/b", ""])
def test_a_source_has_a_name_that_can_be_that_of_a_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="sources"):
        validate(ReplayConfig, {"sources": {name: {"dataset": "demos", "share": 0.5}}})


@pytest.mark.parametrize("share", [0, 1])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        validate(ReplayConfig, {"sources": {"demos": {"dataset": "demos", "share": share}}})


def test_more_rows_than_links_can_reach_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"capacity.*4294967296"):
        validate(ReplayConfig, {"capacity": (1 << 32) + 1})


def test_a_source_is_not_called_actors() -> None:
    with pytest.raises(ConfigError, match=r"sources\.actors: expected another name"):
        validate(ReplayConfig, {"sources": {"actors": {"interventions": True, "share": 0.5}}})


class AgentWithoutConfig:
    """An agent whose parameters are those of its signature."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, discount_factor: float = 0.8) -> None:
        """Keeps nothing."""


class AgentWithoutDiscount:
    """An agent that discounts nothing."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        """Keeps nothing."""


HERE = "tests.common.config.test_replay_config"
OWN, NONE = f"{HERE}:AgentWithoutConfig", f"{HERE}:AgentWithoutDiscount"


@pytest.mark.parametrize(
    ("target", "params", "expected"),
    [
        ("common.agents.dqn:DQN", {"discount_factor": 0.9}, 0.9),
        ("common.agents.dqn:DQN", {}, DQN.Config().discount_factor),
        (OWN, {"discount_factor": 0.7}, 0.7),
        (OWN, {}, 0.8),
        (NONE, {}, None),
        ("common.agents.bc:BC", {}, None),
    ],
)
def test_it_is_the_agents_parameter_or_its_default(target: str, params: dict[str, Any], expected: float | None) -> None:
    assert discount_of(PluginConfig(target=target, params=params)) == expected
