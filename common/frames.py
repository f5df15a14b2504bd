"""Frames once: a batch whose frame columns hold positions, and beside them each different frame a single time.

Of the eight frames in an Atari transition (``obs`` and ``next_obs``, four each) all but one are in the transition
before it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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

    Args:
        schema: of the items.
        before: the frames of the batch before, by content, and how far ``back`` each of them is.
    """

    def __init__(self, schema: Schema, before: Mapping[bytes, int] | None = None) -> None:
        self._schema = schema
        self._given = 0
        self._before = {content: -back for content, back in (before or {}).items()}
        """The frames of the batch before, by content, and the number of each among all that were given."""

    def backs(self) -> list[int]:
        """How far back the frames of the batch before are, each at least 1."""
        return [self._given - number for number in self._before.values()]

    def pack(self, items: Items, rows: int) -> Packed:
        """The first ``rows`` items, which must fit the schema. Frames are equal when all their bytes are."""
        columns = {column.name: items[column.name][:rows] for column in self._schema.columns}
        if self._schema.frame is None:
            return Packed(rows, columns, NO_FRAMES)
        distinct: dict[bytes, int] = {}
        places = _places([_words(columns[column.name]) for column in self._schema.frame_columns], distinct)
        reach = self._given - rows * self._schema.max_frames
        known = {content: number for content, number in self._before.items() if number >= reach}
        new = [content for content in distinct if content not in known]
        known |= {content: number for number, content in enumerate(new, self._given)}
        self._before = {content: known[content] for content in distinct}
        numbers = np.array(list(self._before.values()))
        first = int(numbers.min(initial=self._given))
        for column, place in zip(self._schema.frame_columns, places, strict=True):
            columns[column.name] = (numbers[place] - first).astype("<u4")
        back, self._given = self._given - first, self._given + len(new)
        return Packed(rows, columns, _join(new, self._schema.frame), back)


def _words(stacks: Array) -> Array:
    """``[rows, k, *frame]`` as ``[rows, k, n]``: each frame as the widest integers that it consists of."""
    frames = np.ascontiguousarray(stacks).reshape(*stacks.shape[:2], math.prod(stacks.shape[2:])).view(np.uint8)
    return frames.view(f"u{math.gcd(8, frames.shape[2])}")


def _places(columns: Sequence[Array], distinct: dict[bytes, int]) -> list[Array]:
    """Where in ``distinct``, which grows, each frame of each ``[rows, k, n]`` is, ``[rows, k]``.

    A frame's content is looked up only if it is not where one expects it: one place further in an earlier row, or in
    a later row of the column before. That leaves one of most rows.
    """
    if len(columns[0]) == 1:  # There are no other rows: look at once.
        return [_look_up(stacks, np.ones(stacks.shape[:2], bool), distinct) for stacks in columns]
    places = [_place_first(columns[0], distinct)]
    for before, stacks in pairwise(columns):
        places.append(_place_next(stacks, before, places[-1], distinct))
    return places


def _place_first(stacks: Array, distinct: dict[bytes, int]) -> Array:
    lag, moved = _follows(stacks[:, :-1], stacks[:, 1:])
    new = np.ones(stacks.shape[:2], bool)
    new[lag:, :-1] = ~moved
    places = _look_up(stacks, new, distinct)
    for k in reversed(range(moved.shape[1])):  # The newest first: the others get theirs from the place after them.
        np.copyto(places[lag:, k], places[: len(moved), k + 1], where=moved[:, k])
    return places


def _place_next(stacks: Array, before: Array, places_before: Array, distinct: dict[bytes, int]) -> Array:
    newest = slice(-min(stacks.shape[1], before.shape[1]), None)
    lag, same = _follows(before[:, newest], stacks[:, newest])
    new = np.ones(stacks.shape[:2], bool)
    new[: len(same), newest] = ~same
    places = _look_up(stacks, new, distinct)
    np.copyto(places[: len(same), newest], places_before[lag:, newest], where=same)
    return places


def _follows(later: Array, earlier: Array) -> tuple[int, Array]:
    """By how many rows ``later`` follows ``earlier``, both ``[rows, k, n]``, and where it does, ``[rows - lag, k]``.

    By as many as there are environments, or steps in an item; what comes of the first row is taken for all.
    """
    rows = len(later)
    lag = next((i for i in range(1, rows) if np.array_equal(later[i], earlier[0])), rows)
    return lag, (later[lag:] == earlier[: rows - lag]).all(axis=2)


def _look_up(stacks: Array, wanted: Array, distinct: dict[bytes, int]) -> Array:
    """The places of the frames that are wanted, by content; those of others are undefined."""
    frames, numbers = stacks.reshape(-1, stacks.shape[2]), np.flatnonzero(wanted)
    places = np.empty(wanted.shape, np.int64)
    places.flat[numbers] = [distinct.setdefault(frames[i].tobytes(), len(distinct)) for i in numbers.tolist()]
    return places


def _join(contents: list[bytes], frame: Column) -> Array:
    """``[n, *frame]``."""
    flat: Array = np.frombuffer(b"".join(contents), frame.dtype)
    return flat.reshape(len(contents), *frame.shape)
