"""How far each row is from the beginning of its episode, or of its rollout."""

from __future__ import annotations

import numpy as np

from common.data import FINAL, FIRST, Array, Snapshot
from learner.replay.view import Rows


class Positions:
    """The first row of each row's episode, and the distance from it, computed once for each row.

    A row gets no number if the first row of its episode had been overwritten before, or was never linked to it.
    """

    def __init__(self) -> None:
        self._begins, self._distance = np.empty(0, np.int64), np.empty(0, np.int64)  # Rings; -1: not numbered.
        self._end = 0

    def find(self, rows: Rows, index: Array) -> tuple[Array, Array]:
        """The absolute indices of the episodes' first rows ``[n]``, -1 if not known, and the distances from them."""
        self._make_room(rows)
        if rows.end > self._end:
            self._number(rows, np.arange(max(self._end, rows.first), rows.end))
            self._end = rows.end
        slots = index % len(self._begins)
        return self._begins[slots], self._distance[slots]

    def _make_room(self, rows: Rows) -> None:
        if rows.end - rows.first > len(self._begins):
            size, self._end = 2 * (rows.end - rows.first), 0
            self._begins, self._distance = np.full(size, -1), np.zeros(size, np.int64)

    def _number(self, rows: Rows, new: Array) -> None:
        """Number new rows ``[n]`` that follow one another; earlier rows have been numbered."""
        before, is_first = rows.previous(new), rows.take(FIRST.name, new)
        reached, distance = _count_back(new, before, is_first | (before < 0), np.ones_like(new))
        start, slots = int(new[0]), reached % len(self._begins)
        is_earlier = reached < start
        begins = np.where(is_first[np.maximum(reached - start, 0)], reached, -1)
        self._keep(
            new,
            np.where(is_earlier, self._begins[slots], begins),
            distance + np.where(is_earlier, self._distance[slots], 0),
        )

    def _keep(self, new: Array, begins: Array, distance: Array) -> None:
        slots = new % len(self._begins)
        self._begins[slots], self._distance[slots] = begins, distance


class PlacesInRollouts(Positions):
    """The first row of each row's rollout, and the number of steps from it.

    The steps of a lane are cut into rollouts of ``period`` steps, through all of its episodes. A final row is no step:
    it has the number of the step that follows it.

    A lane is numbered from the first of its rows that is known. In a resumed run that row may have been overwritten, so
    checkpoints keep the numbers.
    """

    def __init__(self, period: int) -> None:
        super().__init__()
        self._period = period

    def _number(self, rows: Rows, new: Array) -> None:
        start, before, is_final = int(new[0]), rows.previous(new), rows.take(FINAL.name, new)
        is_root = before < 0
        follows_step = ~rows.take(FINAL.name, np.where(is_root, new, before))
        reached, steps = _count_back(new, before, is_root, follows_step.astype(np.int64))
        steps += np.where(reached < start, self._distance[reached % len(self._distance)], 0)
        place = steps % self._period
        begins, _ = _count_back(new, before, is_root | (place == 0) & ~is_final, np.zeros_like(new))
        self._keep(new, np.where(begins < start, self._begins[begins % len(self._begins)], begins), place)

    def state(self) -> Snapshot:
        """The numbers of the rows that are numbered."""
        return Snapshot({"end": self._end}, {"begins": self._begins, "places": self._distance})

    def restore(self, state: Snapshot, end: int) -> None:
        """Go on from the numbers of ``state``, of which those before row ``end`` count.

        Raises:
            KeyError: it is another state.
        """
        self._end = min(state.values["end"], end)
        self._begins, self._distance = state.arrays["begins"].copy(), state.arrays["places"].copy()


def _count_back(new: Array, before: Array, is_root: Array, counts: Array) -> tuple[Array, Array]:
    """Follow new rows ``[n]`` back, each to a root among them or to an earlier row.

    Args:
        new: absolute indices that follow one another.
        before: the row before each of them in its lane; any number at a root.
        is_root: at which of them to stop.
        counts: what each of them that is no root counts.

    Returns:
        The rows that were reached ``[n]``, and the sums of the counts on the ways to them ``[n]``.
    """
    start = int(new[0])
    reached, total = np.where(is_root, new, before), np.where(is_root, 0, counts)
    # Each round doubles the distance that every row has been followed back, until all leave ``new`` or are at a root.
    while True:
        inside = reached >= start
        at = np.where(inside, reached - start, 0)
        further = np.where(inside, reached[at], reached)
        if (further == reached).all():
            return reached, total
        total += np.where(inside, total[at], 0)
        reached = further
