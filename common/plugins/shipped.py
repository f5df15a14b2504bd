"""The parts that come with crossborder and that a configuration may name.

``tests/common/plugins/test_shipped.py`` compares these lists with the code.
"""

from __future__ import annotations

from typing import Final, Literal

Role = Literal["environment", "wrapper", "device", "agent", "step processor", "network", "evaluator"]

SHIPPED: Final[dict[Role, frozenset[str]]] = {
    "environment": frozenset(
        {
            "gymnasium:make",
            "gymnasium:make_vec",
            "common.envs.atari:make",
            "common.envs.atari:make_vector",
            "common.envs.goals:Reach",
            "common.envs.masked_tasks:TakeAway",
            "common.envs.minatar:make",
            "common.envs.pettingzoo:make",
            "common.envs.pool:make",
            "common.envs.memory_tasks:Cue",
        }
    ),
    "wrapper": frozenset(
        {
            "common.envs.memory_tasks:KeepElements",
            "crossborder.people.teleoperation:Teleoperate",
            "common.envs.pictures:PreparePictures",
            "common.envs.wrappers:MaskFromInfo",
            "common.envs.wrappers:PythonActions",
            "common.envs.wrappers:discounted_return",
            "crossborder.rewards.reward_classifier:RewardClassifier",
        }
    )
    | frozenset(
        f"gymnasium.wrappers:{name}"
        for name in (
            "ClipAction",
            "ClipReward",
            "DelayObservation",
            "FilterObservation",
            "FlattenObservation",
            "GrayscaleObservation",
            "MaxAndSkipObservation",
            "NormalizeObservation",
            "NormalizeReward",
            "RescaleAction",
            "RescaleObservation",
            "ResizeObservation",
            "StickyAction",
            "TimeAwareObservation",
            "TimeLimit",
        )
    ),
    "device": frozenset({"crossborder.people.gamepad:Gamepad", "crossborder.people.keyboard:Keyboard"}),
    "agent": frozenset(
        {
            "common.agents.awac:AWAC",
            "common.agents.bc:BC",
            "common.agents.c51:C51",
            "common.agents.discrete_sac:DiscreteSAC",
            "common.agents.dqn:DQN",
            "common.agents.impala:IMPALA",
            "common.agents.ppo:PPO",
            "common.agents.iql:IQL",
            "common.agents.iqn:IQN",
            "common.agents.qr_dqn:QRDQN",
            "common.agents.r2d2:R2D2",
            "common.agents.recurrent_ppo:RecurrentPPO",
            "common.agents.recurrent_sac:RecurrentSAC",
            "common.agents.sac:SAC",
            "common.agents.td3:TD3",
        }
    ),
    "step processor": frozenset(),
    "evaluator": frozenset({"common.evaluation:DefaultEvaluator"}),
    "network": frozenset(f"common.agents.networks:{name}" for name in ("ConvNet", "ImpalaCnn", "NatureCnn")),
}
"""By role, as ``module:attr``."""

METHODS: Final[dict[Role, tuple[str, ...]]] = {
    "step processor": ("schema", "reset", "process"),
    "device": ("begin", "read", "close"),
    "evaluator": ("evaluate",),
}
"""By role, for roles without a base class: the methods that a part must have."""

OWN_PACKAGES: Final = ("crossborder", "common", "actor", "learner")
"""The top-level packages of crossborder; of their contents, a learner may name only the parts above."""

GYMNASIUM_PACKAGES: Final = ("gymnasium.envs", "ale_py")
"""The packages of the environments that gymnasium's ids name: its own (also MuJoCo and Box2D) and Atari's."""
