"""Rows of a few episodes in this process's memory: a replay for the checks, from which any view draws."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from common.data import Array, Items, Schema
from common.interfaces import ReplayBuffer, Step
from common.lanes.building import Env, spec_of
from common.parts import row_schema
from common.spaces import to_columns
from crossborder.testing.play import Policy, play
from learner.replay.view import View


def rows_of(schema: Schema, episodes: Sequence[Sequence[Step]], extras: Sequence[Sequence[Items]] = ()) -> Items:
    """The rows of whole episodes, one after another in lane 0; a last episode without an end has no final row.

    Args:
        schema: of the rows.
        episodes: at least one step.
        extras: the extra columns of each step of each episode, ``[1, *shape]`` each; empty: there are none.
    """
    rows = [row for i, episode in enumerate(episodes) for row in _rows_of(episode, extras[i] if extras else ())]
    return {c.name: np.stack([row[c.name] for row in rows]).astype(c.dtype) for c in schema.columns}


def _rows_of(episode: Sequence[Step], extras: Sequence[Items]) -> Iterator[dict[str, Array]]:
    for i, step in enumerate(episode):
        yield _row(step, extras[i] if extras else {}, first=i == 0)
    last = episode[-1]
    if last.terminated or last.truncated:
        final = Step(last.next_obs, last.action, 0.0, last.next_obs, terminated=False, truncated=False)
        yield _row(final, extras[-1] if extras else {}, final=True)


def _row(step: Step, extras: Items, *, first: bool = False, final: bool = False) -> dict[str, Array]:
    values = {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
    marks = {"version": 0, "first": first, "final": final, "lane": 0}
    return {
        **to_columns("obs", step.obs),
        **to_columns("action", step.action),
        **{name: np.asarray(value) for name, value in (values | marks).items()},
        **{name: value[0] for name, value in extras.items()},
    }


def transitions_of(schema: Schema, rows: Items) -> Items:
    """All one-step transitions of rows of one lane: the columns that agents learn from, and the extras."""
    at = np.flatnonzero(~rows["final"][:-1])
    hidden = {"first", "final", "lane"}
    after = {f"next_{column.name}": rows[column.name][at + 1] for column in schema.named("obs")}
    return {name: column[at] for name, column in rows.items() if name not in hidden} | after


def transitions(env: Env, steps: int, *, seed: int = 0, policy: Policy | None = None) -> Items:
    """Play for ``steps`` steps and return the one-step transitions; see ``play``."""
    schema = row_schema(spec_of(env))
    return transitions_of(schema, rows_of(schema, play(env, steps, seed=seed, policy=policy)))


def make_view(view: Callable[..., View], schema: Schema, **given: Any) -> View:
    """Make a view as the learner does, with those of the learner's arguments that it names.

    Args:
        view: the class, or ``functools.partial`` of it with parameters, which stay as they are.
        schema: of the rows.
        given: further arguments of the learner; without them, there are no stacks, and ``discount_factor`` is 0.99.
    """
    bound = view.keywords if isinstance(view, partial) else {}
    named = inspect.signature(view).parameters.keys() - bound.keys()
    given = {"schema": schema, "stack": 1, "discount_factor": 0.99, **given}
    return view(**{name: value for name, value in given.items() if name in named})


class RowMemory(ReplayBuffer):
    """A ``ReplayBuffer`` of the rows of one lane, in the order of time.

    Args:
        schema: of the rows.
        rows: columns ``[n, *shape]``; n may be 0.
        view: assembles the batches.
        seed: of the random draws.
    """

    inserted = sampled = 0  # Attributes instead of the interface's properties.
    first = 0

    def __init__(self, schema: Schema, rows: Items, view: View, seed: int = 0) -> None:
        self.schema, self._rows, self._view = schema, rows, view
        self.end = len(rows["final"])
        self.rng = np.random.default_rng(seed)
        self.inserted = int((~rows["final"]).sum())
        index = np.arange(self.end)
        self._drawable = index[view.can_draw(self, index)]

    def __len__(self) -> int:
        return len(self._drawable)

    def batch(self, size: int) -> Items:
        if not len(self):
            raise IndexError("nothing to draw from")
        plan = self._view.plan(self, self.rng.choice(self._drawable, size))
        self.sampled += self._view.count_steps(plan.made, size)
        return {name: self.take(column, index) for name, (column, index) in plan.takes.items()} | plan.made

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Do nothing: every step stays equally likely."""

    # The rows as views see them. All belong to one lane, so the next row of row i is row i + 1.

    def next(self, index: Array) -> Array:
        """The next row of each row; -1 after the last."""
        return np.where(index + 1 < self.end, index + 1, -1)

    def previous(self, index: Array) -> Array:
        """The row before each row; -1 before the first."""
        return index - 1

    def chain(self, index: Array, n: int) -> Array:
        """Each row and the ``n`` rows that follow it, ``[*index.shape, n + 1]``; -1 for rows after the last."""
        path = index[..., None] + np.arange(n + 1)
        return np.where(path < self.end, path, -1)

    def take(self, column: str, index: Array) -> Array:
        """Values of a column, ``[*index.shape, *shape]``."""
        values: Array = self._rows[column][index]
        return values
