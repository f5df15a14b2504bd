"""The parts that come with crossborder and that a configuration may name, and their short names.

Configurations may name them shortly, such as ``DQN``; what is recorded names them in full. The short names are written
out before anything else reads a configuration. So saved policies and checkpoints stay readable if a later release has
other short names, and actors of the former release know the parts.

``tests/common/plugins/test_shipped.py`` compares these tables with the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

Role = Literal[
    "environment",
    "wrapper",
    "device",
    "agent",
    "step processor",
    "network",
    "evaluator",
    "view",
    "replay buffer",
    "recorder",
    "callback",
]

SHIPPED: Final[dict[Role, dict[str, str]]] = {
    "environment": {
        "gymnasium": "gymnasium:make",
        "gymnasium_vector": "gymnasium:make_vec",
        "atari": "common.envs.atari:make",
        "atari_vector": "common.envs.atari:make_vector",
        "Reach": "common.envs.goals:Reach",
        "TakeAway": "common.envs.masked_tasks:TakeAway",
        "minatar": "common.envs.minatar:make",
        "pettingzoo": "common.envs.pettingzoo:make",
        "envpool": "common.envs.pool:make",
        "godot": "common.envs.godot:make",
        "Cue": "common.envs.memory_tasks:Cue",
    },
    "wrapper": {
        "KeepElements": "common.envs.memory_tasks:KeepElements",
        "Teleoperate": "crossborder.people.teleoperation:Teleoperate",
        "PreparePictures": "common.envs.pictures:PreparePictures",
        "MaskFromInfo": "common.envs.wrappers:MaskFromInfo",
        "PythonActions": "common.envs.wrappers:PythonActions",
        "discounted_return": "common.envs.wrappers:discounted_return",
        "RewardClassifier": "crossborder.rewards.reward_classifier:RewardClassifier",
    }
    | {
        name: f"gymnasium.wrappers:{name}"
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
    },
    "device": {
        "Gamepad": "crossborder.people.gamepad:Gamepad",
        "Keyboard": "crossborder.people.keyboard:Keyboard",
    },
    "agent": {
        "AWAC": "common.agents.awac:AWAC",
        "BC": "common.agents.bc:BC",
        "C51": "common.agents.c51:C51",
        "DiscreteSAC": "common.agents.discrete_sac:DiscreteSAC",
        "DQN": "common.agents.dqn:DQN",
        "IMPALA": "common.agents.impala:IMPALA",
        "PPO": "common.agents.ppo:PPO",
        "IQL": "common.agents.iql:IQL",
        "IQN": "common.agents.iqn:IQN",
        "QRDQN": "common.agents.qr_dqn:QRDQN",
        "R2D2": "common.agents.r2d2:R2D2",
        "RecurrentPPO": "common.agents.recurrent_ppo:RecurrentPPO",
        "RecurrentSAC": "common.agents.recurrent_sac:RecurrentSAC",
        "SAC": "common.agents.sac:SAC",
        "TD3": "common.agents.td3:TD3",
    },
    "step processor": {},
    "evaluator": {"DefaultEvaluator": "common.evaluation:DefaultEvaluator"},
    "network": {name: f"common.agents.networks:{name}" for name in ("ConvNet", "ImpalaCnn", "NatureCnn")},
    "view": {
        "Hindsight": "learner.views.hindsight:Hindsight",
        "Rollouts": "learner.views.rollouts:Rollouts",
        "SelfContained": "learner.views.items:SelfContained",
        "Sequences": "learner.views.sequences:Sequences",
        "Transitions": "learner.views.transitions:Transitions",
    },
    "replay buffer": {"QueueReplay": "learner.replay.queue:QueueReplay"},
    "recorder": {
        "MlflowRecorder": "learner.records.mlflow:MlflowRecorder",
        "TensorBoardRecorder": "learner.records.tensorboard:TensorBoardRecorder",
        "WandbRecorder": "learner.records.wandb:WandbRecorder",
    },
    "callback": {"EarlyStopping": "learner.callbacks.early_stopping:EarlyStopping"},
}
"""By role, the short name of each part in configurations, and the part as ``module:attr``."""

SHORT_NAMES: Final = {short: target for names in SHIPPED.values() for short, target in names.items()}
"""The short names of all roles; no two parts have the same."""

METHODS: Final[dict[Role, tuple[str, ...]]] = {
    "step processor": ("schema", "reset", "process"),
    "device": ("begin", "read", "close"),
    "evaluator": ("evaluate",),
    "recorder": ("write", "flush", "close"),
}
"""By role, for roles without a base class: the methods that a part must have."""

OWN_PACKAGES: Final = ("crossborder", "common", "actor", "learner")
"""The top-level packages of crossborder; of their contents, a learner may name only the parts above."""

GYMNASIUM_PACKAGES: Final = ("gymnasium.envs", "ale_py")
"""The packages of the environments that gymnasium's ids name: its own (also MuJoCo and Box2D) and Atari's."""

PLACES: Final = (
    "env",
    "env.wrappers.*",
    "env.wrappers.*.params.device",
    "agent",
    "agent.params.network",
    "agent.params.frozen_encoders.*",
    "overrides.*.agent.network",
    "overrides.*.agent.frozen_encoders.*",
    "step_processor",
    "evaluator",
    "replay",
    "replay.view",
    "recorders.*",
    "callbacks.*",
)
"""The sections of a configuration whose ``target`` names a part; ``*`` is each entry of a list or a mapping."""


def write_out(values: Any) -> Any:
    """The plain values of a configuration, with each short name in ``PLACES`` written as ``module:attr``.

    Names that are not short names stay as they are, and so do values of other kinds than plain ones.
    """
    for place in PLACES:
        values = _write_out_at(values, place.split("."))
    return values


def _write_out_at(value: Any, path: Sequence[str]) -> Any:
    if not path:
        target = value.get("target") if isinstance(value, Mapping) else None
        short = target if isinstance(target, str) else ""
        return {**value, "target": SHORT_NAMES[short]} if short in SHORT_NAMES else value
    key, *rest = path
    if isinstance(value, Mapping):
        keys = value.keys() if key == "*" else value.keys() & {key}
        return {**value, **{each: _write_out_at(value[each], rest) for each in keys}} if keys else value
    if isinstance(value, list | tuple) and key == "*":
        return [_write_out_at(each, rest) for each in value]
    return value
