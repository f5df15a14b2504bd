"""The difference between two models, for slow links: their exclusive or, in byte planes, compressed.

From version to version the upper bytes of floating-point numbers hardly change. The exclusive or of such a byte is
zero. Put together, the upper bytes form long runs of zeros: the compressed difference is 5 to 20 % smaller than with
the bytes in their original order.
"""

from __future__ import annotations

import numpy as np

from common.data import Array
from common.errors import RefusedError
from common.wire.compression import NUMBERS, compress, decompress

PLANES = 4
"""Bytes 0, 4, 8, … come first, then 1, 5, 9, …; for bfloat16, a delta in two planes would be no smaller."""


def make_delta(base: bytes, model: bytes) -> bytes:
    """The difference that turns ``base`` into ``model``; both have the same number of bytes."""
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
