"""Frames once: a batch whose frame columns hold positions, and beside them the frames that several rows share.

Of the eight frames in an Atari transition (``obs`` and ``next_obs``, four each) all but one are in the transition
before it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Items, Schema

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


def unpack(schema: Schema, batch: Packed) -> Items:
    """The items of a batch that refers to no frames but its own."""
    assert not batch.back
    stacks = {column.name: batch.frames[batch.columns[column.name]] for column in schema.frame_columns}
    return {**batch.columns, **stacks}


class Frames:
    """Frames are given numbers, 0, 1, 2, …; those from ``first`` on are remembered, and found again.

    A stack is where one expects it, one place further than in the row before, or there but for its last frame, which
    is then new, or each of its frames is looked up by its content. So the one new frame of a step need not be hashed;
    should it be a picture that comes back, it has two numbers.

    Args:
        schema: of the items.
        content: the bytes of the first frames.
    """

    def __init__(self, schema: Schema, content: bytes = b"") -> None:
        self.size = schema.frame.row_bytes if schema.frame else 1
        self._stack_bytes = {column.name: column.row_bytes for column in schema.frame_columns}
        self._content = bytearray(content)
        self.first = 0
        """The number of the first frame that is remembered."""
        self._expected = dict.fromkeys(self._stack_bytes, -1)
        """Where in the next row the first frame of each column should be."""
        self._by_hash: dict[int, int] = {}
        self._hashed = 0

    @property
    def end(self) -> int:
        """The number of the next new frame."""
        return self.first + len(self._content) // self.size

    def since(self, number: int) -> bytearray:
        """The bytes of the frames from this number on."""
        return self._content[(number - self.first) * self.size :]

    def forget(self, number: int) -> bytearray:
        """Remember only what is from this number on; the bytes of all that was remembered."""
        content, self._content = self._content, self.since(number)
        self.first, self._hashed = number, max(number, self._hashed)
        self._by_hash = {key: known for key, known in self._by_hash.items() if known >= number}
        return content

    def number(self, items: Items, rows: int) -> list[int]:
        """The numbers of all frames of ``rows`` items, row after row, ``schema.max_frames`` each."""
        contents = [(name, size, items[name].ravel().view(np.uint8).data) for name, size in self._stack_bytes.items()]
        numbers: list[int] = []
        for row in range(rows):
            for name, size, content in contents:
                numbers += self._find(content[row * size : (row + 1) * size], name)
        return numbers

    def _find(self, stack: memoryview, column: str) -> Sequence[int]:
        """The numbers of a stack's frames."""
        size, content = self.size, self._content
        expected = self._expected[column]
        begin = (expected - self.first) * size
        if begin < 0:
            return self._look_up(stack, column)
        if not content.startswith(stack, begin):
            older = stack[:-size]
            if begin + len(older) != len(content) or not content.startswith(older, begin):
                return self._look_up(stack, column)
            content += stack[-size:]
        self._expected[column] += 1
        return range(expected, expected + len(stack) // size)

    def _look_up(self, stack: memoryview, column: str) -> list[int]:
        """The same by the content of each frame."""
        self._hash_new()
        found = []
        for begin in range(0, len(stack), self.size):
            frame = stack[begin : begin + self.size]
            key = hash(bytes(frame))
            known = self._by_hash.get(key, -1)
            if known < self.first or not self._content.startswith(frame, (known - self.first) * self.size):
                known = self._by_hash[key] = self.end
                self._content += frame
            found.append(known)
        self._hashed = self.end
        self._expected[column] = found[1] if len(found) > 1 else found[0] + 1
        return found

    def _hash_new(self) -> None:
        for number in range(self._hashed, self.end):
            begin = (number - self.first) * self.size
            self._by_hash[hash(bytes(self._content[begin : begin + self.size]))] = number


def split(schema: Schema, positions: Array) -> Items:
    """Positions ``[rows, schema.max_frames]`` as the columns of the wire, ``<u4 [rows, k]`` each."""
    ends = np.cumsum([column.shape[0] for column in schema.frame_columns])
    parts = np.split(positions.astype("<u4"), ends[:-1], axis=1)
    return {column.name: part for column, part in zip(schema.frame_columns, parts, strict=True)}


class Packer:
    """Packs batch after batch. Frames that a batch begins with, and the one before held too, are not given again.

    It reaches no further back than the frames that the batch could hold by itself, or a blank picture that keeps coming
    back would have to be kept for ever. What it gives depends on nothing but the items and ``before``.

    Args:
        schema: of the items.
        before: the bytes of the last frames that were given.
    """

    def __init__(self, schema: Schema, before: bytes = b"") -> None:
        self._schema, self._before = schema, before

    @property
    def back(self) -> int:
        """How many of the last frames the next batch may refer to."""
        return len(self._before) // self._schema.frame.row_bytes if self._schema.frame else 0

    def pack(self, items: Items, rows: int) -> Packed:
        """The first ``rows`` items, which must fit the schema. Frames are equal when all their bytes are."""
        columns = {column.name: items[column.name][:rows] for column in self._schema.columns}
        frame, max_frames = self._schema.frame, rows * self._schema.max_frames
        if frame is None:
            return Packed(rows, columns, NO_FRAMES)
        frames = Frames(self._schema, self._before[max(0, self.back - max_frames) * frame.row_bytes :])
        given = frames.end
        numbers = np.array(frames.number(columns, rows), np.int64).reshape(rows, self._schema.max_frames)
        lowest = int(numbers.min(initial=given))
        columns |= split(self._schema, numbers - lowest)
        self._before = bytes(frames.since(lowest))
        new: Array = np.frombuffer(frames.since(given), frame.dtype)
        return Packed(rows, columns, new.reshape(-1, *frame.shape), given - lowest)
