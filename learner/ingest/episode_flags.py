"""Checks that the flags of a batch's rows tell of episodes as the protocol describes them."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, FIRST, LANE, Array, Items
from common.errors import BadValue, RefusedError

_ENDS = ("terminated", "truncated")


def check_flags(items: Items) -> None:
    """Check where the episodes of a batch begin and end.

    No final row begins an episode or says how a step ended. A row that ends an episode is followed in its lane by the
    final row, or, where the final row was lost with the environment, by the first row of the next episode. A final row
    is followed by a first row. Otherwise the next observation of a step would be of another episode.

    Args:
        items: rows in the order of time, ``[n]`` each.

    Raises:
        RefusedError: naming the first wrong row.
    """
    final = items[FINAL.name]
    ended = items["terminated"] | items["truncated"]
    if not np.count_nonzero(final | ended):
        return
    for name in (FIRST.name, *_ENDS):
        _refuse(np.flatnonzero(final & items[name]), name, wanted=False, where="in a final row")
    # The rows of each lane one after the other, so that the next row of a lane is the next one in these arrays.
    order = np.argsort(items[LANE.name], kind="stable")
    lane, first, final, ended = (column[order] for column in (items[LANE.name], items[FIRST.name], final, ended))
    goes_on = (lane[1:] == lane[:-1]) & ~first[1:]
    after_final, after_end = goes_on & final[:-1], goes_on & ended[:-1] & ~final[1:]
    _refuse(order[1:][after_final], FIRST.name, wanted=True, where="after a final row of its lane")
    _refuse(order[1:][after_end], FINAL.name, wanted=True, where="after the last step of an episode of its lane")


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
