"""Saved policies for use in other programs: they take single observations as the environment gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.data import Leaves
from common.interfaces import Agent, EnvSpec
from common.lanes.building import read_spec
from common.lanes.stacking import Stacker
from common.spaces import flatten, unflatten
from learner.storage.checkpoint import load_agent


class Policy:
    """Greedy actions for single observations of any space, whereas ``Agent.sample`` takes batches of arrays.

    The policy may remember the present episode, as an agent with a memory or with stacks of frames does. So call
    ``begin`` before each further episode; the first episode needs no call.

    Args:
        agent: in eval mode.
        frames: the spaces of the environment, as they are recorded.
        frame_stack: the number of frames that the agent sees in one observation.
    """

    def __init__(self, agent: Agent, frames: EnvSpec, frame_stack: int = 1) -> None:
        self.agent = agent
        self._spec = frames
        self._stacker = Stacker(frames, 1, frame_stack) if frame_stack > 1 else None
        self._begins = True

    def begin(self) -> None:
        """Note that the next observation begins an episode."""
        self._begins = True

    def __call__(self, observation: Any) -> Any:
        """Choose an action for one observation; it can be passed to the environment's ``step``."""
        obs = _with_axis(flatten(self._spec.observation_space, observation))
        begins = np.array([True]) if self._begins else None
        if begins is not None:
            self.agent.begin(begins)
        self._begins = False
        seen = self._stacker.add(obs, begins) if self._stacker is not None else obs
        return unflatten(self._spec.action_space, _without_axis(self.agent.sample(seen)))


def _with_axis(leaves: Leaves) -> Leaves:
    return {path: leaf[None] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[None]


def _without_axis(leaves: Leaves) -> Leaves:
    return {path: leaf[0] for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves[0]


def load_policy(directory: Path, allow: Sequence[str] = ()) -> Policy:
    """Load a saved policy.

    Args:
        directory: of the policy, such as ``RUN/best``.
        allow: your own parts and packages that the policy may name, as ``module:attr`` or ``module``, such as
            ``["my_parts"]``; or ``any``. The parts that come with crossborder need no entry.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        PluginError: the policy names a part that is not allowed, or the agent or the environment that knows the
            observation space cannot be built.
    """
    agent, config, _ = load_agent(directory, allow)
    return Policy(agent, read_spec(config.env), config.env.frame_stack)
