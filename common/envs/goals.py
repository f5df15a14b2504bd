"""A small task with goals: an arm of joints in a plane, whose tip has to reach a goal."""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np

from common.data import Array
from common.errors import ConfigError

TURN: Final = 0.2
"""Radians by which an action of 1 turns a joint."""


class Reach(gymnasium.Env[Any, Any]):
    """An arm of equal links, together 1 long, turns its joints until its tip is at a goal, and holds it there.

    Observations are those of gymnasium-robotics' ``GoalEnv``: ``observation`` has the cosines and sines of the joints'
    angles ``[2 * n_joints]``, ``achieved_goal`` is the place of the tip ``[2]``, ``desired_goal`` the goal ``[2]``.
    Actions are the turns of the joints in units of ``TURN``, ``[n_joints]`` in [-1, 1]. The reward is 0 if the tip is
    within ``radius`` of the goal and otherwise -1, so at first a policy hardly ever sees another reward than -1. Each
    episode begins in a random pose, has a goal anywhere within reach, and is truncated after ``max_steps``. ``info``
    has ``is_success``.

    Args:
        n_joints: the number of joints, at least 1.
        radius: the largest distance from the goal that counts as success, above 0.
        max_steps: the number of steps in an episode, at least 1.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, n_joints: int = 3, radius: float = 0.05, max_steps: int = 50) -> None:
        if not (n_joints >= 1 and radius > 0 and max_steps >= 1):
            raise ConfigError(
                "Reach: expected n_joints and max_steps of at least 1 and a radius above 0, found "
                f"{n_joints}, {max_steps} and {radius}"
            )
        self._n_joints, self._radius, self._max_steps = n_joints, radius, max_steps
        boxes = {"observation": 2 * n_joints, "achieved_goal": 2, "desired_goal": 2}
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(-1.001, 1.001, (size,), np.float32) for name, size in boxes.items()}
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (n_joints,), np.float32)
        self._angles, self._goal, self._steps = np.zeros(n_joints), np.zeros(2), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Choose a pose, and a goal with equal chance for equal areas."""
        super().reset(seed=seed, options=options)
        self._angles, self._steps = self.np_random.uniform(-np.pi, np.pi, self._n_joints), 0
        direction, distance = self.np_random.uniform(-np.pi, np.pi), np.sqrt(self.np_random.random())
        self._goal = distance * np.array([np.cos(direction), np.sin(direction)])
        return self._observe(), {"is_success": False}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Turn the joints."""
        self._angles = self._angles + TURN * np.clip(action, -1, 1)
        self._steps += 1
        obs = self._observe()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, False, self._steps >= self._max_steps, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: dict[str, Any]) -> Array:  # noqa: ARG002 - the signature of GoalEnv
        """The rewards ``[…]`` for achieved and desired goals, ``[…, 2]`` each."""
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        rewards: Array = np.where(distance <= self._radius, 0.0, -1.0)
        return rewards

    def _observe(self) -> dict[str, Array]:
        cosine, sine = np.cos(self._angles), np.sin(self._angles)
        heading = np.cumsum(self._angles)
        tip = np.array([np.cos(heading).mean(), np.sin(heading).mean()])
        found = {"observation": np.concatenate([cosine, sine]), "achieved_goal": tip, "desired_goal": self._goal}
        return {name: value.astype(np.float32) for name, value in found.items()}
