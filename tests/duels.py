"""A game in which each side sees what the other one did, and an agent whose action is the version of its model.

So the learner's rows show which model played against it in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from pettingzoo import ParallelEnv

from common.data import Array
from tests.parts import CheckingLaneAgent
from tests.stored import stored_links, stored_rows

ENV: dict[str, Any] = {"target": "pettingzoo", "params": {"id": "tests.duels:Duel", "groups": 3, "players": "pool"}}
LONGEST = 9


class Duel(ParallelEnv[str, Any, int]):  # type: ignore[misc] # PettingZoo has no types.
    """Two agents; observations are ``[step, what the other one did]``. The greater last action wins."""

    metadata: dict[str, Any] = {"name": "duel"}  # noqa: RUF012 - as PettingZoo declares both
    possible_agents: list[str] = ["a", "b"]  # noqa: RUF012

    def __init__(self) -> None:
        self._rng, self.agents = np.random.default_rng(0), list[str]()

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-1, 1e9, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(1 << 30)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._step, self._steps = [*self.possible_agents], 0, int(self._rng.integers(2, LONGEST))
        return self._observe({"a": -1, "b": -1}), {agent: {} for agent in self.agents}

    def _observe(self, actions: Mapping[str, int]) -> dict[str, Array]:
        others = {"a": actions["b"], "b": actions["a"]}
        return {agent: np.array([self._step, other], np.float32) for agent, other in others.items()}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        self._step += 1
        is_end, won = self._step == self._steps, int(np.sign(int(actions["a"]) - int(actions["b"])))
        rewards = {"a": float(won * is_end), "b": float(-won * is_end)}
        self.agents = [] if is_end else self.agents
        ends, cuts = dict.fromkeys("ab", is_end), dict.fromkeys("ab", False)
        return self._observe(actions), rewards, ends, cuts, {"a": {}, "b": {}}


class Versioned(CheckingLaneAgent):
    """Its action is the number of opt steps of its model."""

    def sample(self, obs: Array, lanes: Array | None = None) -> Array:
        return np.full(len(obs), int(self._steps), np.int64)

    def check(self, items: Mapping[str, Array]) -> None:
        pass


class Tied(Versioned):
    """Its model has one tensor under two names, as a network with tied weights has."""

    def model_info(self) -> Mapping[str, torch.Tensor]:
        return {**super().model_info(), "again": self._steps}


def find_opponents(run_dir: Path) -> tuple[int, int, set[int]]:
    """What the rows of a run say of its opponents.

    Returns:
        The number of episodes; the number of rows in which another model acted for the opponent than in the row before,
        or another one than the row names; and the opponents.
    """
    rows, links = stored_rows(run_dir), stored_links(run_dir)
    goes_on = ~rows["first"] & (links > 0) & (links <= np.arange(len(links)))
    here = np.flatnonzero(goes_on)
    before = here - links[here]
    named, did = rows["info/opponent"], rows["obs"][:, 1].astype(np.int64)
    is_final = rows["final"][here]
    changes = (did[here] != named[before]) | (~is_final & (named[here] != named[before]))
    return int(rows["first"].sum()), int(changes.sum()), {*named.tolist()}
