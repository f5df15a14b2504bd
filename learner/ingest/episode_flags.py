"""Checks that the flags of a batch's rows mark where episodes begin and end, as the protocol demands."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, FIRST, LANE, Array, Items
from common.errors import BadValue, RefusedError


def check_flags(items: Items) -> None:
    """Check where the episodes of a batch begin and end.

    No final row begins an episode or says how a step ended. In each lane a final row is followed by the first row of an
    episode, and a truncated row by its final row: otherwise the step's next observation would be of another episode. A
    row that is terminated may be followed by any row, since its next observation does not count: a map of rows may call
    the loss of a life an end.

    Args:
        items: rows in the order of time, ``[n]`` each.

    Raises:
        RefusedError: naming the first row that breaks a rule.
    """
    final = items[FINAL.name]
    truncated = items.get("truncated", np.zeros_like(final))
    if not np.count_nonzero(final | truncated):
        return
    for name in (FIRST.name, "terminated", "truncated"):
        if name in items:
            _refuse(np.flatnonzero(final & items[name]), name, wanted=False, where="in a final row")
    # The rows of each lane one after the other, so that the next row of a lane is the next one in these arrays.
    order = np.argsort(items[LANE.name], kind="stable")
    columns = (items[LANE.name], items[FIRST.name], final, truncated)
    lane, first, final, truncated = (column[order] for column in columns)
    goes_on, following = lane[1:] == lane[:-1], order[1:]
    _refuse(
        following[goes_on & final[:-1] & ~first[1:]], FIRST.name, wanted=True, where="after a final row of its lane"
    )
    cut_off = goes_on & truncated[:-1] & ~final[1:]
    _refuse(following[cut_off], FINAL.name, wanted=True, where="after a truncated row of its lane")


def _refuse(rows: Array, name: str, *, wanted: bool, where: str) -> None:
    """Raise an error if there are rows that hold a wrong flag.

    Args:
        rows: their numbers in the batch, ``[k]``.
        name: the flag's column.
        wanted: the right flag.
        where: the place in which the flag is wrong.

    Raises:
        RefusedError: naming the first of the rows.
    """
    if len(rows):
        bad = BadValue(name, f"{wanted} {where}", str(not wanted), int(rows.min()))
        raise RefusedError(str(bad), "values", bad)
