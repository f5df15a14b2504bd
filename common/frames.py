"""Frames once: a batch whose frame columns hold positions, and beside them each different frame a single time.

Of the eight frames in an Atari transition (``obs`` and ``next_obs``, four each) all but one are in the transition
before it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Column, Items, Schema

NO_FRAMES: Final[Array] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Packed:
    """A batch with each of its frames once.

    ``columns`` are ``[rows, *shape]``, but frame columns ``<u4 [rows, k]``: positions, counted from ``back`` frames
    before the first of ``frames``, ``[n, *frame]``. Without frame columns the columns are those of the items.
    """

    rows: int
    columns: Items
    frames: Array
    back: int = 0


class Packer:
    """Packs batch after batch. A frame that the batch before held too is not given again: ``back`` reaches to it.

    It reaches no further than the frames that the batch could hold by itself, or a blank picture that keeps coming
    back would have to be kept for ever.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._given = 0
        self._before: dict[bytes, int] = {}
        """The frames of the batch before, by content, and the number of each among all that were given."""

    def pack(self, items: Items, rows: int) -> Packed:
        """The first ``rows`` items, which must fit the schema. Frames are equal when all their bytes are."""
        columns = {column.name: items[column.name][:rows] for column in self._schema.columns}
        if self._schema.frame is None:
            return Packed(rows, columns, NO_FRAMES)
        distinct: dict[bytes, int] = {}
        places = {c.name: _places(_words(columns[c.name]), distinct) for c in self._schema.frame_columns}
        reach = self._given - rows * self._schema.max_frames
        known = {content: number for content, number in self._before.items() if number >= reach}
        new = [content for content in distinct if content not in known]
        known |= {content: number for number, content in enumerate(new, self._given)}
        self._before = {content: known[content] for content in distinct}
        numbers = np.array(list(self._before.values()))
        first = int(numbers.min(initial=self._given))
        for name, place in places.items():
            columns[name] = (numbers[place] - first).astype("<u4")
        back, self._given = self._given - first, self._given + len(new)
        return Packed(rows, columns, _join(new, self._schema.frame), back)


def _words(stacks: Array) -> Array:
    """``[rows, k, *frame]`` as ``[rows, k, n]``: each frame as the widest integers that it consists of."""
    frames = np.ascontiguousarray(stacks).reshape(*stacks.shape[:2], math.prod(stacks.shape[2:])).view(np.uint8)
    return frames.view(f"u{math.gcd(8, frames.shape[2])}")


def _places(stacks: Array, distinct: dict[bytes, int]) -> Array:
    """Where in ``distinct``, which grows, each frame of ``[rows, k, n]`` is, ``[rows, k]``.

    Contents are looked up only of frames that no earlier row has one place further: of an episode's rows, the last.
    """
    lag, moved = _moved(stacks)
    new = np.ones(stacks.shape[:2], bool)
    new[lag:, :-1] = ~moved
    frames, numbers = stacks.reshape(-1, stacks.shape[2]), np.flatnonzero(new)
    places = np.empty(new.shape, np.int64)
    places.flat[numbers] = [distinct.setdefault(frames[i].tobytes(), len(distinct)) for i in numbers.tolist()]
    for k in reversed(range(moved.shape[1])):
        np.copyto(places[lag:, k], places[: len(moved), k + 1], where=moved[:, k])
    return places


def _moved(stacks: Array) -> tuple[int, Array]:
    """After how many rows the first goes on, as with several environments, and which frames do, ``[rows - lag, k - 1]``."""
    rows = len(stacks)
    lag = next((i for i in range(1, rows) if np.array_equal(stacks[i, :-1], stacks[0, 1:])), rows)
    return lag, (stacks[lag:, :-1] == stacks[: rows - lag, 1:]).all(axis=2)


def _join(contents: list[bytes], frame: Column) -> Array:
    """``[n, *frame]``."""
    flat: Array = np.frombuffer(b"".join(contents), frame.dtype)
    return flat.reshape(len(contents), *frame.shape)
