"""The discount factor is the agent's, and a view takes it from there."""

from __future__ import annotations

from typing import Any

import pytest

from common.agents.dqn import DQN
from common.config.discount import discount_of
from common.interfaces import EnvSpec
from common.plugins.part_config import PluginConfig


class AgentWithoutConfig:
    """An agent whose parameters are those of its signature."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, discount_factor: float = 0.8) -> None:
        """Keeps nothing."""


class AgentWithoutDiscount:
    """An agent that discounts nothing."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str) -> None:
        """Keeps nothing."""


HERE = "tests.common.config.test_discount"
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
