from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.agents.dqn import DQN
from common.config.run_config import RunConfig
from common.data import Items
from common.errors import ConfigError
from common.interfaces import EnvSpec, Step
from common.parts import build_parts
from common.processors import NStep


class AgentWithoutConfig:
    """An agent whose parameters are those of its signature."""

    def __init__(self, spec: EnvSpec, *, seed: int, epsilon: float, device: str, discount_factor: float = 0.8) -> None:
        """Keeps nothing."""


class HalfAsLong(NStep):
    """A user's step processor, derived from ours."""


class OwnProcessor:
    """A user's step processor whose ``discount_factor`` means something else."""

    def __init__(self, discount_factor: float = 0.5) -> None:
        self.discount_factor = discount_factor


def run(agent: dict[str, Any], processor: dict[str, Any], **changes: Any) -> RunConfig:
    values = {
        "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
        "agent": {"target": "common.agents.dqn:DQN", **agent},
        "step_processor": {"target": "common.processors:NStep", **processor},
        "trainer": {"max_opts": 1},
        **changes,
    }
    return RunConfig.model_validate(values)


def discounts(config: RunConfig) -> list[float]:
    """The discount column of three steps' items."""
    parts = build_parts(config, seed=0)
    parts.close()
    processor, items = parts.lanes[0].processor, list[Items]()
    obs = np.zeros(4, np.float32)
    for _ in range(3):
        made = processor.process(Step(obs, 0, 1.0, obs, terminated=False, truncated=False))
        items += [made] if made is not None else []
    return [round(float(value), 6) for item in items for value in item["discount"]]


def test_nstep_takes_the_discount_factor_of_the_agent() -> None:
    config = run({"params": {"discount_factor": 0.9}}, {"params": {"n": 3}})
    config.check()
    assert discounts(config) == [round(0.9**3, 6)]


def test_nstep_takes_the_default_of_the_agent() -> None:
    assert discounts(run({}, {"params": {"n": 2}})) == [round(DQN.Config().discount_factor ** 2, 6)] * 2


@pytest.mark.parametrize(
    ("agent", "processor"),
    [
        ({"params": {"discount_factor": 0.9}}, {"params": {"discount_factor": 0.99}}),
        ({}, {"params": {"discount_factor": 0.9}}),
        ({"target": "tests.common.config.test_discount:AgentWithoutConfig"}, {"params": {"discount_factor": 0.9}}),
        ({}, {"target": "tests.common.config.test_discount:HalfAsLong", "params": {"discount_factor": 0.9}}),
    ],
)
def test_two_different_discount_factors_are_refused(agent: dict[str, Any], processor: dict[str, Any]) -> None:
    config = run(agent, processor)
    with pytest.raises(ConfigError, match=r"step_processor.params.discount_factor: expected 0\..*found 0\..*remove it"):
        config.check()
    if agent.get("target") is None:
        with pytest.raises(ConfigError, match=r"step_processor\.params\.discount_factor"):
            build_parts(config, seed=0)


def test_the_same_discount_factor_in_both_places_is_accepted() -> None:
    run({"params": {"discount_factor": 0.9}}, {"params": {"discount_factor": 0.9}}).check()


def test_a_discount_factor_of_one_actor_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent_overrides\.3\.discount_factor"):
        run({}, {}, agent_overrides={3: {"discount_factor": 0.5}}).check()


def test_an_agent_without_a_discount_factor_leaves_nstep_its_own() -> None:
    config = run({"target": "common.agents.bc:BC"}, {"params": {"n": 2, "discount_factor": 0.5}})
    config.check()
    assert discounts(config) == [0.25, 0.25]


def test_a_step_processor_of_a_users_own_keeps_its_parameters() -> None:
    config = run({}, {"target": "tests.common.config.test_discount:OwnProcessor", "params": {"discount_factor": 0.7}})
    config.check()
