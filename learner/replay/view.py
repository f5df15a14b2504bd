"""A view decides at which rows a draw can begin, and assembles a batch from these rows and the rows around them.

A view works with absolute indices of rows and says in a ``Plan`` which stored values a batch takes. It copies no large
values itself, so the same view serves arrays in shared memory and tensors on a device.

Another process may overwrite rows while a view looks at them. Their values and links are then arbitrary, and so is the
plan of that draw, but no index leads outside the replay. The caller of ``View.plan`` sees by ``Plan.lowest`` that the
draw is spoilt, and makes another draw.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from common.data import Array, Items, Schema, Snapshot


class Rows(Protocol):
    """The rows of a replay at one moment. All indices are absolute, ``[…]`` int64."""

    @property
    def schema(self) -> Schema:
        """The columns of a row."""

    @property
    def first(self) -> int:
        """The oldest row that counts."""

    @property
    def end(self) -> int:
        """The index after the newest row."""

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers for views that need them. A resumed run goes on with the same numbers."""

    def next(self, index: Array) -> Array:
        """The next row of each row's lane; -1 where it is not known yet, or where the lane was cut off.

        A lane goes on through all of its episodes: the row after a final row is the first of the next episode.
        """

    def chain(self, index: Array, n: int) -> Array:
        """Each row and the ``n`` next rows of its lane, ``[*index.shape, n + 1]``; -1 from the first unknown row on."""

    def previous(self, index: Array) -> Array:
        """The row before each row in its lane; -1 if there is none, or if it has been overwritten."""

    def take(self, column: str, index: Array) -> Array:
        """Stored values of a small column, ``[*index.shape, *shape]``."""


@dataclass(frozen=True)
class Plan:
    """How to assemble a batch of B draws.

    Args:
        takes: by column of the batch, the stored column and the rows to take it from, ``[B, …]``; an axis beyond the
            first becomes an axis of the batch: time, or frames.
        lowest: for each draw the lowest row that any of its values comes from, ``[B]``. If it is overwritten while the
            batch is gathered, that draw is made again.
        made: columns of the batch that the view has computed, ``[B, …]``.
        also: rows from which ``made`` was computed and that are not in ``takes``, ``[B, …]`` each.
    """

    takes: dict[str, tuple[str, Array]]
    lowest: Array
    made: Items = field(default_factory=dict)
    also: tuple[Array, ...] = ()


class View(abc.ABC):
    """Assembles batches. Built as ``YourView(schema=…, stack=…, discount_factor=…, make_env=…, **params)``.

    A view takes those of the four arguments that it names.

    Args of the constructor that the system provides:
        schema: of the stored rows.
        stack: frames in one observation of the agent (``env.frame_stack``); 1 for none.
        discount_factor: the agent's; None if it has none.
        make_env: makes the run's environment; None where the learner builds none (``env.spaces``).
    """

    settings = ""
    """All settings on which draws depend, as one text. A batch that was drawn under other settings is not used."""
    weigh: Callable[[Rows, Array, Plan], Plan] | None = None
    """Adds a column ``weight`` to the plan of draws that begin at these rows; None: the view's plans stay as they are.
    """

    @abc.abstractmethod
    def can_draw(self, rows: Rows, index: Array) -> Array:
        """At which of the rows ``[n]`` a draw can begin, ``[n]`` bool; n may be 0.

        The answer for a row may change from False to True when later rows are linked to it. It never changes from True
        to False while the replay holds the row and the rows before it.
        """

    @abc.abstractmethod
    def plan(self, rows: Rows, index: Array) -> Plan:
        """How to assemble the draws that begin at the rows ``[B]``, for all of which ``can_draw`` is true."""

    def choose(self, rows: Rows, tries: Array, size: int) -> tuple[Array, Plan]:
        """The first of the rows ``tries`` at which a draw can begin, at most ``size``, and the plan of those draws.

        It is ``can_draw`` and ``plan`` in one; a view overrides it only to be faster.
        """
        index = tries[self.can_draw(rows, tries)][:size]
        return index, self.plan(rows, index)

    @property
    def steps(self) -> int:
        """Steps in one draw, at most."""
        return 1

    @property
    def overlaps(self) -> bool:
        """Whether two draws that begin at different rows may have a step in common."""
        return self.steps > 1

    def count_steps(self, made: Items, draws: int) -> int:  # noqa: ARG002 - for views whose draws differ in length
        """Steps in this many draws, by which ``sampled`` counts; ``made`` has at least the columns of ``Plan.made``."""
        return draws * self.steps

    @property
    def reach(self) -> int:
        """How many later rows of the lane a draw may need, at most.

        Once this many rows follow a row, or its episode's final row does, a buffer asks ``can_draw`` for the last time.
        """
        return 1

    @property
    def crosses_episodes(self) -> bool:
        """Whether a draw goes on in the next episode of its lane, and so needs ``reach`` rows in any case."""
        return False

    def state(self) -> Snapshot:
        """What decides where draws can begin, besides the rows; a queue's checkpoints keep it."""
        return Snapshot({})

    def restore(self, state: Snapshot, end: int) -> None:  # noqa: B027 - most views have no such state
        """Go on as the view that gave ``state``, of which only rows before ``end`` are still there.

        Raises:
            KeyError: it is the state of another view.
        """
