"""Items whose stacked observations share frames, kept and sent with each frame a single time.

Of the eight frames in an Atari transition (``obs`` and ``next_obs``, four each) seven are in the transition before it
too. There are two forms of items with each frame once, and one way to find equal frames, ``FrameNumbers``:

- ``BufferedItems``: where an actor keeps items until they are sent. An ``ItemBuffer`` makes them row by row. Frames
  have numbers that hold for all batches of one buffer, so ``codec.encode_together`` can merge batches.
- ``Packed``: the form of payloads and of the replay. Frame columns hold positions in a run of frames.
  ``codec.decode`` makes it of a payload; a ``Packer`` makes it of items that never cross a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from common.data import Array, Items, Schema

NO_FRAMES: Final[Array] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Packed:
    """A batch with each of its frames once.

    Args:
        rows: the number of items.
        columns: ``[rows, *shape]``. A frame column is ``<u4 [rows, k]``: positions, counted from ``back`` frames before
            the first of ``frames``.
        frames: ``[n, *frame]``; ``NO_FRAMES`` where the schema has no frame columns.
        back: how many frames before ``frames`` the batch refers to. The batch before it in the replay holds them.
    """

    rows: int
    columns: Items
    frames: Array
    back: int = 0


def unpack(schema: Schema, batch: Packed) -> Items:
    """The items of a batch that refers to no frames but its own; every column ``[rows, *shape]``."""
    assert not batch.back
    stacks = {column.name: batch.frames[batch.columns[column.name]] for column in schema.frame_columns}
    return {**batch.columns, **stacks}


class FrameNumbers:
    """Gives frames the numbers 0, 1, 2, …, and equal frames the same number.

    The frames from number ``first`` on are remembered. Most frames are found without hashing: a column's next stack
    usually begins one frame further than its last stack did, and ends with the only frame that is new. The stack is
    compared with the remembered frames at that place. Only where they differ is each frame of the stack looked up by a
    hash of its bytes. A picture that comes back where a new frame is expected is therefore not recognised: it gets a
    second number.

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
        """By column, the number that the first frame of the next row should have."""
        self._by_hash: dict[int, int] = {}
        self._hashed = 0

    @property
    def end(self) -> int:
        """The number that the next new frame will get."""
        return self.first + len(self._content) // self.size

    def since(self, number: int) -> bytearray:
        """The bytes of the frames from this number on."""
        return self._content[(number - self.first) * self.size :]

    def forget(self, number: int) -> bytearray:
        """Forget the frames before this number; returns the bytes of all frames that were remembered until now."""
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
        """The numbers of a stack's frames, which are first sought at the place where the column's next stack should be.

        ``startswith`` compares the bytes without copying them.
        """
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
        """The numbers of a stack's frames, found by the hash of each frame; frames that are not found are new."""
        for number in range(self._hashed, self.end):  # Frames that ``_find`` has added since the last look-up.
            begin = (number - self.first) * self.size
            self._by_hash[hash(bytes(self._content[begin : begin + self.size]))] = number
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


def split_positions(schema: Schema, positions: Array) -> Items:
    """Positions ``[rows, schema.max_frames]`` as the frame columns of the wire, ``<u4 [rows, k]`` each."""
    ends = np.cumsum([column.shape[0] for column in schema.frame_columns])
    parts = np.split(positions.astype("<u4"), ends[:-1], axis=1)
    return {column.name: part for column, part in zip(schema.frame_columns, parts, strict=True)}


class Packer:
    """Packs one batch of items after another. A batch refers back to frames that the batches before it hold.

    A batch refers no further back than the number of frames that it could hold by itself. Without this limit a blank
    picture that keeps coming back would have to be kept for ever.

    The result depends only on the items and on ``before``, not on other frames that this packer has seen: a run in
    turns that is resumed packs as the uninterrupted run would have packed.

    Args:
        schema: of the items.
        before: the bytes of the last frames of the batches before.
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
        frames = FrameNumbers(self._schema, self._before[max(0, self.back - max_frames) * frame.row_bytes :])
        first_new = frames.end
        numbers = np.array(frames.number(columns, rows), np.int64).reshape(rows, self._schema.max_frames)
        lowest = int(numbers.min(initial=first_new))
        columns |= split_positions(self._schema, numbers - lowest)
        self._before = bytes(frames.since(lowest))
        new: Array = np.frombuffer(frames.since(first_new), frame.dtype)
        return Packed(rows, columns, new.reshape(-1, *frame.shape), first_new - lowest)


@dataclass(frozen=True)
class BufferedItems:
    """Items that were taken out of an ``ItemBuffer``, in memory of their own.

    Args:
        rows: the number of items.
        columns: the bytes of all columns that hold no frames, by name.
        numbers: of the frames of each item, ``[rows, schema.max_frames]`` int64. A number means the same frame in all
            batches of one buffer.
        frames: the bytes of the frames from number ``first`` on; some of them belong to no item.
        first: the number of the first frame in ``frames``.
        frame_bytes: the size of one frame.
    """

    rows: int
    columns: Mapping[str, bytes]
    numbers: Array
    frames: bytearray
    first: int
    frame_bytes: int

    def frame(self, number: int) -> memoryview:
        """The bytes of a frame, by its number from ``first`` to before ``end``."""
        begin = (number - self.first) * self.frame_bytes
        return memoryview(self.frames)[begin : begin + self.frame_bytes]

    @property
    def end(self) -> int:
        """The number after that of the last frame."""
        return self.first + len(self.frames) // self.frame_bytes

    def items(self, schema: Schema) -> Items:
        """Copies of the items, every column ``[rows, *shape]`` and writable."""
        columns: Items = {}
        for column in schema.columns:
            if not column.frames:
                flat: Array = np.frombuffer(bytearray(self.columns[column.name]), column.dtype)
                columns[column.name] = flat.reshape(self.rows, *column.shape)
        if schema.frame is None:
            return columns
        frames: Array = np.frombuffer(self.frames, schema.frame.dtype).reshape(-1, *schema.frame.shape)
        positions = split_positions(schema, self.numbers - self.first)
        return unpack(schema, Packed(self.rows, columns | positions, frames))

    @property
    def n_bytes(self) -> int:
        """The memory that these items take."""
        return sum(map(len, self.columns.values())) + self.numbers.nbytes + len(self.frames)


class ItemBuffer:
    """Copies items, one or several at a time, until they are taken as one batch.

    The arrays that were added may be overwritten as soon as ``add`` has returned.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema, self._frames = schema, FrameNumbers(schema)
        self._names = [column.name for column in schema.columns if not column.frames]
        self._pieces: list[bytes] = []
        """The bytes of every column of the first ``add``, then those of the next ``add``."""
        self._numbers: list[int] = []
        self.rows = 0

    def add(self, items: Items, rows: int) -> None:
        """Copy all ``rows`` items of ``items``, which must fit the schema."""
        pieces = self._pieces
        for name in self._names:
            pieces.append(items[name].tobytes())
        if self._schema.frame is not None:
            self._numbers += self._frames.number(items, rows)
        self.rows += rows

    def take(self) -> BufferedItems:
        """Everything that was added since the last ``take``, at least one item."""
        columns = {name: b"".join(self._pieces[i :: len(self._names)]) for i, name in enumerate(self._names)}
        numbers = np.array(self._numbers, np.int64).reshape(self.rows, self._schema.max_frames)
        first, frames = self._frames.first, bytearray()
        if numbers.size:
            # The next items begin with frames of the last item. So these frames stay, but no more than this batch could
            # hold.
            oldest_needed = max(int(numbers[-1].min()), self._frames.end - numbers.size)
            frames = self._frames.forget(oldest_needed)
        taken = BufferedItems(self.rows, columns, numbers, frames, first, self._frames.size)
        self._pieces.clear()
        self._numbers.clear()
        self.rows = 0
        return taken
