"""Words of 8 bytes in memory that processes share.

Each word has one writer, and an aligned word of 8 bytes is read and written whole, so no lock is needed.
"""

from __future__ import annotations

import mmap
from typing import Any, ClassVar


class Word:
    """An attribute of a ``Words`` block: one word of 8 bytes.

    Args:
        index: of the word in the block.
        kind: int (signed) or float.
    """

    def __init__(self, index: int, kind: type[int] | type[float] = int) -> None:
        self._index = index
        self._view = "_ints" if kind is int else "_floats"

    def __get__(self, block: Words, owner: type[Words]) -> Any:
        return getattr(block, self._view)[self._index]

    def __set__(self, block: Words, value: float) -> None:
        getattr(block, self._view)[self._index] = value


class Words:
    """A block of words in a mapped file; subclasses name the words.

    Args:
        buffer: the mapped file.
        offset: of the block in it, in bytes.
    """

    N_WORDS: ClassVar[int]

    def __init__(self, buffer: mmap.mmap, offset: int = 0) -> None:
        raw = memoryview(buffer)[offset : offset + 8 * self.N_WORDS]
        self._ints = raw.cast("q")
        self._floats = raw.cast("d")
