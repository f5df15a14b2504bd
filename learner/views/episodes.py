"""The rows ahead of a row, within its episode."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, Array
from learner.replay.view import Rows


def follow(rows: Rows, index: Array, n: int) -> Array:
    """The rows ``[B]`` and the ``n`` rows that follow each of them, up to the final row, which is then repeated.

    Returns:
        Their indices ``[B, n + 1]``, -1 from where the next row is not known.
    """
    path = np.ascontiguousarray(rows.chain(index, n))
    known = path >= 0
    final = rows.take(FINAL.name, path if known.all() else np.where(known, path, index[:, None])) & known  # [B, n + 1]
    ended = final.any(axis=1, keepdims=True)
    if ended.any():
        ends = final.argmax(axis=1, keepdims=True)
        path = np.where(ended & (np.arange(n + 1) > ends), np.take_along_axis(path, ends, axis=1), path)
    return path
