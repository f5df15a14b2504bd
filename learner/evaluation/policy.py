"""A saved policy that takes observations as the environment gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from common.envs import as_element_of, box_of, build_raw_env
from common.interfaces import Agent
from learner.storage.checkpoint import load_agent


class Policy:
    """Greedy actions for single observations, which ``agent.sample`` takes only after they were laid into one array.

    Args:
        agent: in eval mode.
        observations: the observation space of the environment itself: Box, Dict, Discrete, Tuple, ….
    """

    def __init__(self, agent: Agent, observations: gymnasium.Space[Any]) -> None:
        self.agent = agent
        self._observations, self._boxed = observations, box_of(observations)

    def __call__(self, observation: Any) -> Any:
        """The action for one observation as the environment gives it; the action is one that its ``step`` takes."""
        return self.agent.sample(as_element_of(self._boxed, self._observations, observation)[None])[0]


def load_policy(directory: Path) -> Policy:
    """Load the policy of a checkpoint.

    Args:
        directory: of the checkpoint, such as ``RUN/best``.

    Raises:
        CheckpointError: the directory holds no readable checkpoint.
        PluginError: the environment, which is asked for its observation space, or the agent cannot be built.
    """
    agent, config, _ = load_agent(directory)
    env = build_raw_env(config.env)
    env.close()
    return Policy(agent, env.observation_space)
