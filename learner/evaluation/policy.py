"""Saved policies for use in other programs: they take single observations as the environment gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from common.envs import as_element_of, box_of, build_raw_env
from common.interfaces import Agent
from learner.storage.checkpoint import load_agent


class Policy:
    """Greedy actions for single observations of any space; ``Agent.sample`` takes batches of arrays alone.

    Args:
        agent: in eval mode.
        observations: the observation space of the environment itself: Box, Dict, Discrete, Tuple, ….
    """

    def __init__(self, agent: Agent, observations: gymnasium.Space[Any]) -> None:
        self.agent = agent
        self._observations, self._boxed = observations, box_of(observations)

    def __call__(self, observation: Any) -> Any:
        """Choose an action for one observation; it can be passed to the environment's ``step``."""
        return self.agent.sample(as_element_of(self._boxed, self._observations, observation)[None])[0]


def load_policy(directory: Path) -> Policy:
    """Load a saved policy.

    Args:
        directory: of the policy, such as ``RUN/best``.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        PluginError: the agent, or the environment that knows the observation space, cannot be built.
    """
    agent, config, _ = load_agent(directory)
    env = build_raw_env(config.env)
    env.close()
    return Policy(agent, env.observation_space)
