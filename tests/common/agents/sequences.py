"""Batches of sequences for tests of agents with a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from common.agents.network_agent import NetworkAgent
from common.data import Array, Items
from common.parts import row_schema
from crossborder.testing import ItemMemory, RowMemory, play, rows_of
from learner.replay.view import View
from learner.views.sequences import Sequences


def played_by(
    agent: NetworkAgent,
    spec: Any,
    env: gymnasium.Env[Any, Any],
    steps: int,
    view: Callable[..., View] = Sequences,
    **params: Any,
) -> RowMemory:
    """A replay of random steps, beside which an agent has recorded its extras; ``params`` are those of the view."""
    schema = row_schema(spec, agent)
    episodes = play(env, steps)
    recorded = []
    for episode in episodes:
        agent.begin(np.ones(1, np.bool_))
        extras = []
        for step in episode:
            agent.sample(np.asarray(step.obs)[None])
            extras.append({name: column.copy() for name, column in agent.extras().items()})
            agent.begin(np.zeros(1, np.bool_))
        recorded.append(extras)
    return RowMemory(schema, rows_of(schema, episodes, recorded), view(schema, **params))


class Prioritized(ItemMemory):
    """Gives all of its sequences at once, with indices and weights, and keeps the errors that it is told."""

    is_uniform = False

    def __init__(self, items: Items, weights: Array) -> None:
        super().__init__(items)
        self._weights = weights
        self.told: list[Array] = []

    def batch(self, size: int) -> Items:
        self.sampled += size
        return {**self._items, "index": np.arange(len(self)), "weight": self._weights}

    def update_priority(self, index: Array, td_error: Array) -> None:
        assert index.tolist() == list(range(len(self)))
        self.told.append(td_error)
