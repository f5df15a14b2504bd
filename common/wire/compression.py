"""Zstandard (RFC 8878): payloads with pictures, and deltas of models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import zstandard

from common.data import Array
from common.errors import RefusedError

PICTURES: Final = -1
"""The level for pictures. It compresses pictures of most Atari games to 0.6 % of their size, of Seaquest to 2 %. With
level 1 they are 5 % smaller still, but it takes up to twice as long."""
NUMBERS: Final = 1
"""The level for numbers, which negative levels hardly make smaller."""


class _Contexts(threading.local):
    """The contexts of one thread: two threads that share a context would mix up their data."""

    def __init__(self) -> None:
        self.compressors = {level: zstandard.ZstdCompressor(level=level) for level in (PICTURES, NUMBERS)}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(data: bytes, level: int = PICTURES) -> bytes:
    """One Zstandard frame that states its content size; at worst it is a few bytes longer than ``data``."""
    return _contexts.compressors[level].compress(data)


def compress_together(pieces: Sequence[bytes | memoryview], level: int = PICTURES) -> bytes:
    """One Zstandard frame that states its content size, of all pieces one after another.

    The pieces go through the processor's cache one by one. So 8 MB of pictures take half the time that it takes to join
    them and to compress them at once.
    """
    frame = _contexts.compressors[level].compressobj(size=sum(map(len, pieces)))
    return b"".join((*map(frame.compress, pieces), frame.flush()))


def decompress(frame: bytes | memoryview, max_bytes: int) -> bytes:
    """The content of one frame.

    Raises:
        RefusedError: ``frame`` is not one whole frame, or it does not state a content size of up to ``max_bytes``.
            ``decompress`` never takes more memory than that.
    """
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_bytes:
            found = "none" if size < 0 else size
            raise RefusedError(f"payload: expected a content size of up to {max_bytes} bytes, found {found}", "payload")
        return _contexts.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RefusedError(f"payload: expected one Zstandard frame, found other bytes: {error}", "payload") from error


PLANES = 4
"""Bytes 0, 4, 8, … come first, then 1, 5, 9, …; for bfloat16, a delta in two planes would be no smaller."""


def make_delta(base: bytes, model: bytes) -> bytes:
    """The difference of two models of one size: their exclusive or in byte planes, compressed.

    From version to version the upper bytes of floating-point numbers hardly change. The exclusive or of such a byte is
    zero. Put together, the upper bytes form long runs of zeros: the compressed difference is 5 to 20 % smaller than
    with the bytes in their original order.
    """
    changed = np.frombuffer(base, np.uint8) ^ np.frombuffer(model, np.uint8)
    words = np.pad(changed, (0, -len(changed) % PLANES)).reshape(-1, PLANES)
    return compress(words.T.tobytes(), NUMBERS)


def apply_delta(base: Array, delta: bytes) -> Array:
    """The model from which ``make_delta`` made ``delta``, uint8 ``[n]`` as ``base`` is, in new memory.

    Raises:
        RefusedError: ``delta`` is no delta, or belongs to models of another size. ``apply_delta`` never takes more
            memory than a model of the size of ``base`` needs.
    """
    size = len(base) + -len(base) % PLANES
    planes = np.frombuffer(decompress(delta, size), np.uint8)
    if len(planes) != size:
        raise RefusedError(f"delta: expected {size} bytes, found {len(planes)}")
    model: Array = planes.reshape(PLANES, -1).T.flatten()[: len(base)]
    model ^= base
    return model
