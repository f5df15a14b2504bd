"""One-step and n-step transitions."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from common.data import FINAL, Array, Schema
from common.errors import ConfigError
from learner.replay.view import Plan, Rows
from learner.views.columns import StepColumns, next_name
from learner.views.paths import PathView, follow, has_stack, stack

ENDS: Final = ("terminated", "truncated")


class Transitions(PathView):
    """Transitions over k steps: ``obs``, ``action``, ``reward``, ``next_obs``, ``terminated``, ``truncated``, extras.

    Observations and actions of structured spaces come as ``obs/…``, ``action/…`` and ``next_obs/…``. With n > 1,
    ``reward = r_0 + gamma r_1 + … + gamma^(k-1) r_(k-1)`` (float32), ``next_obs``, ``terminated`` and ``truncated``
    are those of the last of the k steps, and ``discount = gamma^k`` (float32) is the factor of the value of
    ``next_obs`` in the target. k is n, or less if the episode ends or is terminated before; so every step of a whole
    episode can be drawn. The action and the extras are those of the first step. Multi-step learning as in
    Rainbow, arXiv:1710.02298.

    With next actions, ``next_action`` is the action that was taken after ``next_obs``. If the episode ends there, no
    action was taken, and the column means nothing.

    Args:
        schema: of the rows.
        stack: frames in one observation; observations are then ``[B, stack, *shape]``.
        discount_factor: gamma, between 0 and 1; only n > 1 needs it.
        n: the number of steps in one transition, at least 1.
        next_actions: whether batches have ``next_action``, for agents with ``critic_imitation``.

    Raises:
        ConfigError: a value is out of range, or the schema is not of rows.
    """

    def __init__(
        self,
        schema: Schema,
        stack: int = 1,
        discount_factor: float | None = None,
        *,
        n: int = 1,
        next_actions: bool = False,
    ) -> None:
        if n < 1:
            raise ConfigError(f"replay.view.params.n: expected 1 or more, found {n}")
        if n > 1 and (discount_factor is None or not 0 <= discount_factor <= 1):
            raise ConfigError(
                f"replay.view.params.n: {n} steps need an agent with a discount_factor from 0 to 1, a parameter of its "
                f"constructor; found {discount_factor}"
            )
        self._columns, self._stack, self._n = StepColumns.of(schema), stack, n
        self._later = self._columns.action if next_actions else ()
        self._discount = discount_factor or 0.0

    @cached_property
    def _powers(self) -> Array:
        """The powers of gamma up to n. They are made for the first draw: only then is n known to fit the replay."""
        powers: Array = self._discount ** np.arange(self._n + 1)
        return powers

    @property
    def reach(self) -> int:
        return self._n

    def _find_path(self, rows: Rows, index: Array) -> Array:
        """The next rows ``[B]``; with n > 1, the rows ``[B, n + 1]`` as ``follow`` gives them."""
        return rows.next(index) if self._n == 1 else follow(rows, index, self._n)

    def _is_able(self, rows: Rows, index: Array, path: Array) -> Array:
        after = path if self._n == 1 else path[:, -1]
        able: Array = (after >= 0) & ~rows.take(FINAL.name, index)
        return able if self._stack == 1 else able & has_stack(rows, index, self._stack)

    def _plan_path(self, rows: Rows, index: Array, path: Array) -> Plan:
        if self._n == 1:
            return self._plan(rows, index, index, path)
        steps, each = path[:, :-1], np.arange(len(path))
        is_step, terminated = ~rows.take(FINAL.name, steps), rows.take("terminated", steps)
        if terminated[:, :-1].any():  # The episode may go on in the replay: a map of rows may end it at a lost life.
            is_step[:, 1:] &= ~np.logical_or.accumulate(terminated[:, :-1], axis=1)
        count = is_step.sum(axis=1)
        rewards = np.where(is_step, rows.take("reward", steps), 0.0)
        plan = self._plan(rows, index, path[each, count - 1], path[each, count])
        del plan.takes["reward"]
        made = {
            "reward": (rewards @ self._powers[:-1]).astype(np.float32),
            "discount": self._powers[count].astype(np.float32),
        }
        return Plan(plan.takes, plan.lowest, made, also=(path,))

    def _plan(self, rows: Rows, index: Array, last: Array, after: Array) -> Plan:
        """Transitions that begin at the rows ``index``; their last steps are ``last``, and ``after`` the next rows."""
        columns, before, lowest = self._columns, index, index
        later = {next_name(name): (name, after) for name in self._later}
        if self._stack > 1:
            before, after = stack(rows, index, self._stack), stack(rows, after, self._stack)
            lowest = before[:, 0]
        takes = later | {name: (name, before) for name in columns.obs}
        takes |= {name: (name, index) for name in (*columns.action, "reward")}
        takes |= {next_name(name): (name, after) for name in columns.obs}
        takes |= {name: (name, last) for name in ENDS}
        takes |= {name: (name, index) for name in columns.extras}
        return Plan(takes, lowest)
