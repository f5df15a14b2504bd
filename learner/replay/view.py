"""What an agent draws: a view decides which rows can be drawn, and assembles a batch of what lies behind and ahead.

A view works with absolute indices of rows and says in a ``Plan`` which stored values a batch takes. It copies no large
values itself, so the same view serves arrays in shared memory and tensors on a device.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Protocol

from common.data import Array, Items, Schema


class Rows(Protocol):
    """The rows of a replay at one moment. All indices are absolute, ``[…]`` int64.

    Every index that is passed must be of a row that is there: from ``first`` to before ``end``.
    """

    schema: Schema
    first: int
    """The oldest row that counts."""
    end: int
    """The row after the newest."""

    def next(self, index: Array) -> Array:
        """The next row of each row's lane; -1 where it is not known yet, or where the lane was cut off."""

    def previous(self, index: Array) -> Array:
        """The row before in each row's lane; -1 where there is none, or where it has been overwritten."""

    def take(self, column: str, index: Array) -> Array:
        """Stored values of a small column, ``[*index.shape, *shape]``."""


@dataclass(frozen=True)
class Plan:
    """How to assemble a batch of B draws.

    Args:
        takes: by column of the batch, the stored column and the rows to take it from, ``[B, …]``; an axis beyond the
            first becomes an axis of the batch: time, or frames.
        made: columns of the batch that the view has computed, ``[B, …]``.
        lowest: for each draw the lowest row that any of its values comes from, ``[B]``. If it is overwritten while the
            batch is gathered, that draw is made again.
    """

    takes: dict[str, tuple[str, Array]]
    lowest: Array
    made: Items = field(default_factory=dict)


class View(abc.ABC):
    """Assembles batches. Built as ``YourView(schema=…, stack=…, discount_factor=…, **params)``.

    A view takes those of the three arguments that it names.

    Args of the constructor that the system provides:
        schema: of the stored rows.
        stack: frames in one observation of the agent (``env.frame_stack``); 1 for none.
        discount_factor: the agent's; None if it has none.
    """

    @abc.abstractmethod
    def can_draw(self, rows: Rows, index: Array) -> Array:
        """At which of the rows ``[n]`` a draw can begin, ``[n]`` bool.

        A row at which no draw can begin yet may become one later, when rows are linked to it; never the reverse, while
        the row itself and the rows before it are there.
        """

    @abc.abstractmethod
    def plan(self, rows: Rows, index: Array) -> Plan:
        """How to assemble the draws that begin at the rows ``[B]``, for all of which ``can_draw`` is true."""

    @property
    def steps(self) -> int:
        """Steps in one draw, by which ``sampled`` counts."""
        return 1

    @property
    def reach(self) -> int:
        """How many later rows of the lane a draw may need, at most: by then ``can_draw`` is settled."""
        return 1
