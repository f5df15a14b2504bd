"""Items as an actor gathers them and keeps them until they are sent: columns as bytes, each frame once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.data import Array, Items, Schema
from common.wire.frames import Frames, Packed, split, unpack


@dataclass(frozen=True)
class Gathered:
    """Rows of one gatherer, which belong to nobody else."""

    rows: int
    columns: Mapping[str, bytes]
    """All columns but those of frames."""
    numbers: Array
    """Of the frames of each row, ``[rows, schema.max_frames]`` int64: the same in all that one gatherer gives."""
    frames: bytearray
    """Those from number ``first`` on; some may be of no row."""
    first: int
    frame_bytes: int

    def frame(self, number: int) -> memoryview:
        """The bytes of a frame from ``first`` to before ``end``."""
        begin = (number - self.first) * self.frame_bytes
        return memoryview(self.frames)[begin : begin + self.frame_bytes]

    @property
    def end(self) -> int:
        """The number after that of the last frame."""
        return self.first + len(self.frames) // self.frame_bytes

    def items(self, schema: Schema) -> Items:
        """The same as items again, in arrays of their own."""
        columns: Items = {}
        for column in schema.columns:
            if not column.frames:
                flat: Array = np.frombuffer(bytearray(self.columns[column.name]), column.dtype)
                columns[column.name] = flat.reshape(self.rows, *column.shape)
        if schema.frame is None:
            return columns
        frames: Array = np.frombuffer(self.frames, schema.frame.dtype).reshape(-1, *schema.frame.shape)
        return unpack(schema, Packed(self.rows, columns | split(schema, self.numbers - self.first), frames))

    @property
    def n_bytes(self) -> int:
        """Memory that it takes."""
        return sum(map(len, self.columns.values())) + self.numbers.nbytes + len(self.frames)


class Gatherer:
    """Copies items row after row, so that their arrays may be used again at once."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._frames = schema, Frames(schema)
        self._names = [column.name for column in schema.columns if not column.frames]
        self._pieces: list[bytes] = []
        """All columns of the first items, then all of the next."""
        self._numbers: list[int] = []
        self.rows = 0

    def add(self, items: Items, rows: int) -> None:
        """Take as many items, which must fit the schema and be all there are."""
        pieces = self._pieces
        for name in self._names:
            pieces.append(items[name].tobytes())
        if self._schema.frame is not None:
            self._numbers += self._frames.number(items, rows)
        self.rows += rows

    def take(self) -> Gathered:
        """All that was added since the last time, at least one item."""
        columns = {name: b"".join(self._pieces[i :: len(self._names)]) for i, name in enumerate(self._names)}
        numbers = np.array(self._numbers, np.int64).reshape(self.rows, self._schema.max_frames)
        first = self._frames.first
        frames = self._frames.forget(self._still_wanted(numbers)) if numbers.size else bytearray()
        gathered = Gathered(self.rows, columns, numbers, frames, first, self._frames.size)
        self._pieces.clear()
        self._numbers.clear()
        self.rows = 0
        return gathered

    def _still_wanted(self, numbers: Array) -> int:
        """The lowest frame of the last row, which the next rows go on from; but no more than this batch could hold."""
        end = self._frames.end
        return max(int(numbers[-1].min()), end - numbers.size)
