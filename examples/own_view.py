"""Your own view: transitions with the return that followed, which self-imitation learning needs (arXiv:1806.05635).

Run: learner-server --config examples/own_view.yaml --local-actors 2
"""

from dataclasses import replace

import numpy as np

from crossborder import Array, Plan, Rows, Schema, Transitions, View, follow


class WithReturn(View):
    """One-step transitions with a column ``return`` ``[B]``: the discounted rewards of the next ``horizon`` steps."""

    def __init__(self, schema: Schema, discount_factor: float, horizon: int = 100) -> None:
        self._transitions = Transitions(schema)
        self._powers = discount_factor ** np.arange(horizon)
        self._horizon = horizon

    @property
    def reach(self) -> int:
        return self._horizon

    def can_draw(self, rows: Rows, index: Array) -> Array:
        path = follow(rows, index, self._horizon)  # [B, horizon + 1]; a final row is repeated.
        able: Array = self._transitions.can_draw(rows, index) & (path[:, -1] >= 0)
        return able

    def plan(self, rows: Rows, index: Array) -> Plan:
        path = follow(rows, index, self._horizon)[:, :-1]
        returns = rows.take("reward", path) @ self._powers  # The reward of a final row is 0.
        plan = self._transitions.plan(rows, index)
        return replace(plan, made={"return": returns.astype(np.float32)}, also=(path,))
