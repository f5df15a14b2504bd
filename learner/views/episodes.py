"""The rows ahead of a row, within its episode."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, Array
from learner.replay.view import Rows


def follow(rows: Rows, index: Array, n: int) -> tuple[Array, Array]:
    """The rows ``[B]`` and the ``n`` rows that follow each of them, up to the final row, which is then repeated.

    Returns:
        Their indices ``[B, n + 1]``, -1 from where the next row is not known, and which of them are final, likewise.
    """
    path = np.ascontiguousarray(rows.chain(index, n))
    final = is_final(rows, path, index)
    ended = final.any(axis=1)
    if ended.any():
        ends = final.argmax(axis=1)
        beyond = ended[:, None] & (np.arange(n + 1) > ends[:, None])
        path = np.where(beyond, path[np.arange(len(path)), ends][:, None], path)
        final |= beyond
    return path, final


def is_final(rows: Rows, path: Array, index: Array) -> Array:
    """Which rows of a path ``[B, n]`` from the rows ``index`` ``[B]`` are final; unknown rows are not."""
    known = path >= 0
    if known.all():
        return rows.take(FINAL.name, path)
    final: Array = rows.take(FINAL.name, np.where(known, path, index[:, None]))
    return final & known
