"""Saved policies for use in other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.home import expand_path
from common.lanes.policy import Policy
from learner.storage.checkpoint import load_parts


def load_policy(directory: str | Path, allow: Sequence[str] = (), device: str = "cpu") -> Policy:
    """Load a saved policy.

    Args:
        directory: of the policy, such as ``RUN/best``.
        allow: your own parts and packages that the policy may name, as ``module:attr`` or ``module``, such as
            ``["my_parts"]``; or ``any``. The parts that come with crossborder need no entry.
        device: where the policy computes, as in ``trainer.device``.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        ConfigError: the directory is in a home that is not known.
        PluginError: the policy names a part that is not allowed, or the agent or the environment that knows the
            observation space cannot be built.
    """
    parts, _, meta = load_parts(expand_path(directory, "directory"), allow, device)
    return Policy(parts.agent, parts.frames, parts.frame_stack, meta["opt_steps"])
