"""Pictures that prove things: each names itself, so every row can be checked by itself.

Processes that write replays import this module: nothing here imports torch.
"""

from __future__ import annotations

import numpy as np

from common.data import Array, Column, Items, Schema

EPISODE = 7
"""Steps in an episode, which takes one more row."""
SCHEMA = Schema.of_rows((Column("obs", "|u1", (32, 32)), Column("n", "<i8")))


def pictures(numbers: Array) -> Array:
    """``[*shape]`` to ``[*shape, 32, 32]``: pictures that repeat their numbers."""
    as_bytes = numbers.astype("<i8")[..., None].view(np.uint8)
    return np.tile(as_bytes, 128).reshape(*numbers.shape, 32, 32)


def picture_rows(n: Array, lane: int = 0) -> Items:
    """The rows with these numbers ``[rows]`` of a lane that begins with row 0."""
    place = n % (EPISODE + 1)
    return {
        "obs": pictures(n),
        "n": n.astype("<i8"),
        "version": np.zeros(len(n), np.uint32),
        "first": place == 0,
        "final": place == EPISODE,
        "lane": np.full(len(n), lane, np.uint16),
    }


def check_pictures(rows: Items) -> None:
    """Every row is whole, and is the row that its number names."""
    np.testing.assert_array_equal(rows["obs"], pictures(rows["n"]))
