"""Stacked pictures that prove things: each names itself, so every stack can be checked by itself.

Processes that write replays import this module: nothing here imports torch.
"""

from __future__ import annotations

import numpy as np

from common.data import Array, Column, Items, Schema

EPISODE = 7
STACK = np.arange(-3, 1)
SCHEMA = Schema(
    (
        Column("obs", "|u1", (4, 2, 3), frames=True),
        Column("n", "<i8"),
        Column("next_obs", "|u1", (4, 2, 3), frames=True),
    )
)


def pictures(numbers: Array) -> Array:
    """``[*shape]`` to ``[*shape, 2, 3]``: pictures that differ when their numbers do."""
    as_bytes = numbers.astype("<i8")[..., None].view(np.uint8)
    return as_bytes[..., :6].reshape(*numbers.shape, 2, 3)


def stacked_items(n: Array) -> Items:
    """The transitions with these numbers ``[rows]``, of a life with an episode each 7 steps that begins padded."""
    first = 8 * (n // EPISODE)  # An episode of 7 steps shows 8 pictures.
    newest = n + n // EPISODE
    stacks = [np.maximum(first[:, None], end[:, None] + STACK) for end in (newest, newest + 1)]
    return {"obs": pictures(stacks[0]), "n": n, "next_obs": pictures(stacks[1])}


def check_stacks(items: Items) -> None:
    """Every row is whole and the one that its number says."""
    for name, column in stacked_items(items["n"]).items():
        np.testing.assert_array_equal(items[name], column, err_msg=name)
