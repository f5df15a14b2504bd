"""An environment of PettingZoo for tests, and the rows of it that somebody would record by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from common.data import Array

Choose = Callable[[Any], int]
"""The action for one observation."""


class Crowd(ParallelEnv[str, Any, int]):  # type: ignore[misc] # PettingZoo has no types.
    """Up to four agents. The seed decides who comes when, who leaves when, and who is terminated or truncated.

    Observations are ``[game, step, agent, last action, a random number]``. With masks, random actions are allowed, and
    at an agent's end none.

    Raises:
        ValueError: by ``step``, if an action is not allowed, or is given for somebody who is not there or for nobody.
    """

    metadata: dict[str, Any] = {"name": "crowd"}  # noqa: RUF012 - as PettingZoo declares both
    possible_agents: list[str] = ["a", "b", "c", "d"]  # noqa: RUF012

    def __init__(self, *, has_masks: bool = False) -> None:
        self._has_masks, self._game, self._rng = has_masks, -1, np.random.default_rng(0)
        self._box = gymnasium.spaces.Box(-1, 1e6, (5,), np.float32)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        if not self._has_masks:
            return self._box
        mask = gymnasium.spaces.Box(0, 1, (3,), np.int8)
        return gymnasium.spaces.Dict({"observation": self._box, "action_mask": mask})

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._game, self._step = self._game + 1, 0
        self._comes = {"a": 0} | {agent: int(self._rng.integers(0, 5)) for agent in "bcd"}
        self._leaves = {agent: come + int(self._rng.integers(1, 7)) for agent, come in self._comes.items()}
        self._is_end = {agent: bool(self._rng.integers(2)) for agent in "abcd"}
        self.agents = [agent for agent in self.possible_agents if not self._comes[agent]]
        self._allowed = {agent: np.ones(3, np.int8) for agent in "abcd"}
        return {agent: self._observe(agent, -1) for agent in self.agents}, {agent: {} for agent in self.agents}

    def _observe(self, agent: str, action: int) -> Any:
        number = self.possible_agents.index(agent)
        obs = np.array([self._game, self._step, number, action, self._rng.random()], np.float32)
        if not self._has_masks:
            return obs
        is_last = self._step == self._leaves[agent] and self._is_end[agent]
        allowed = [0, 0, 0] if is_last else self._rng.permutation([1, *self._rng.integers(0, 2, 2)])
        self._allowed[agent] = np.array(allowed, np.int8)
        return {"observation": obs, "action_mask": self._allowed[agent]}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        if list(actions) != self.agents or not actions:
            raise ValueError(f"actions for {list(actions)} instead of {self.agents}")
        refused = [agent for agent, action in actions.items() if not self._allowed[agent][action]]
        if refused:
            raise ValueError(f"the actions of {refused} are not allowed")
        self._step += 1
        gone = [agent for agent in self.agents if self._leaves[agent] == self._step]
        come = [agent for agent in self.possible_agents if self._comes[agent] == self._step]
        rewards = {agent: 10.0 * (self.possible_agents.index(agent) + 1) + action for agent, action in actions.items()}
        seen = [*self.agents, *come]
        obs = {agent: self._observe(agent, int(actions.get(agent, -1))) for agent in seen}
        ends = {agent: agent in gone and self._is_end[agent] for agent in seen}
        cuts = {agent: agent in gone and not self._is_end[agent] for agent in seen}
        infos = {agent: {"is_success": ends[agent]} if agent in gone else {} for agent in seen}
        self.agents = [agent for agent in self.possible_agents if agent in seen and agent not in gone]
        return obs, {agent: rewards.get(agent, 0.0) for agent in seen}, ends, cuts, infos


def record_by_hand(env: ParallelEnv[Any, Any, Any], choose: Choose, rounds: int, seed: int) -> dict[str, list[Any]]:
    """By agent, the rows ``(obs, action, reward, terminated, truncated, first, final)`` of this many steps.

    Of a final row, only the observation counts: its other values are None.
    """
    rows: dict[str, list[Any]] = {agent: [] for agent in env.possible_agents}
    obs, _ = env.reset(seed=seed)
    begins = set(env.agents)
    for _ in range(rounds):
        if not env.agents:
            obs, _ = env.reset()
            begins = set(env.agents)
        before = [*env.agents]
        actions = {agent: choose(obs[agent]) for agent in before}
        after, rewards, ends, cuts, _ = env.step(actions)
        for agent in before:
            flags = (bool(ends[agent]), bool(cuts[agent]))
            rows[agent].append((obs[agent], actions[agent], float(rewards[agent]), *flags, agent in begins, False))
            if any(flags):
                rows[agent].append((after[agent], None, None, None, None, False, True))
        obs, begins = after, set(env.agents) - set(before)
    return rows


def as_array(obs: Any) -> Array:
    """The leaf ``observation`` of an observation with a mask, or the whole observation."""
    found: Array = obs["observation"] if isinstance(obs, dict) else obs
    return found
