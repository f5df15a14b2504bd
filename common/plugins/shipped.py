"""The parts that come with crossborder and that a configuration may name; ``tests/common/plugins/test_shipped.py`` compares."""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["environment", "agent", "step processor", "network"]

SHIPPED: Final[dict[Role, frozenset[str]]] = {
    "environment": frozenset({"gymnasium:make", "common.atari:make"}),
    "agent": frozenset(
        {
            "common.agents.awac:AWAC",
            "common.agents.bc:BC",
            "common.agents.dqn:DQN",
            "common.agents.iql:IQL",
            "common.agents.iqn:IQN",
            "common.agents.sac:SAC",
            "common.agents.td3:TD3",
        }
    ),
    "step processor": frozenset({"common.processors:NStep", "common.processors:OneStep"}),
    "network": frozenset({"common.agents.networks:ImpalaCnn", "common.agents.networks:NatureCnn"}),
}
"""By role, as ``module:attr``."""

OWN_PACKAGES: Final = ("crossborder", "common", "actor", "learner")
"""The top-level packages of this product; nothing else in them may be named by a learner."""

GYMNASIUM_PACKAGES: Final = ("gymnasium.envs", "ale_py")
"""Where the environments live that gymnasium's ids name: its own (MuJoCo and Box2D among them) and Atari's."""
