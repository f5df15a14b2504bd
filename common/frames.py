"""Frames once: a batch whose frame columns hold positions, and beside them each different frame a single time.

Of the eight frames in an Atari transition (``obs`` and ``next_obs``, four each) all but one are in the transition
before it too.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        places = {c.name: _places(columns[c.name], distinct) for c in self._schema.frame_columns}
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


def _places(stacks: Array, distinct: dict[bytes, int]) -> Array:
    """Where in ``distinct``, which grows, each frame of ``[rows, k, *frame]`` is, ``[rows, k]``."""
    places = [distinct.setdefault(frame.tobytes(), len(distinct)) for stack in stacks for frame in stack]
    return np.array(places, np.int64).reshape(stacks.shape[:2])


def _join(contents: list[bytes], frame: Column) -> Array:
    """``[n, *frame]``."""
    flat: Array = np.frombuffer(b"".join(contents), frame.dtype)
    return flat.reshape(len(contents), *frame.shape)
