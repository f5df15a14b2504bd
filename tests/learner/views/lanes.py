"""Episodes with known values in a replay: every row holds its own number, of lanes that step in turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from common.data import INTERVENED, Array, Column, Items, Schema
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.view import View
from learner.replay.writer import ReplayWriter

SCHEMA: Final = Schema.of_rows(
    (
        Column("obs/at", "<i8"),
        Column("obs/frame", "|u1", (2,)),
        Column("action", "<i8"),
        Column("reward", "<f4"),
        Column("terminated", "|b1"),
        Column("truncated", "|b1"),
        Column("logp", "<f4"),
        Column("state/h", "<f4", (3,)),
    )
)
WITH_INTERVENTIONS: Final = SCHEMA.plus(INTERVENED)


class Lanes:
    """Writes rows into a replay of its own. ``obs/at`` of a row is its absolute index, ``reward`` is ``2 ** t``.

    Args:
        directory: gets the files.
        capacity: rows kept.
        schema: ``SCHEMA``, or ``WITH_INTERVENTIONS``: then the rows 3, 13, 23, … are intervened.
    """

    def __init__(self, directory: Path, capacity: int = 1000, schema: Schema = SCHEMA) -> None:
        self.memory = ReplayMemory(directory / "replay", schema, capacity, create=True)
        self._writer, self._seq = ReplayWriter(self.memory), 0

    def play(self, *lengths: int, ends: bool = True, lane: int = 0) -> list[list[int]]:
        """Play episodes of these lengths one after another in a lane; the last one is cut off unless it ``ends``.

        Returns:
            For each episode the absolute indices of its rows, the final row included.
        """
        rows: list[dict[str, float]] = []
        for number, length in enumerate(lengths):
            done = ends or number < len(lengths) - 1
            rows += [self.row(t, length, lane, final=t == length, done=done) for t in range(length + done)]
        start = self.memory.committed
        self.write(rows)
        firsts = [start + i for i, row in enumerate(rows) if row["first"]]
        return [list(range(a, b)) for a, b in zip(firsts, [*firsts[1:], start + len(rows)], strict=True)]

    def play_in_turn(self, lengths: Sequence[int]) -> list[list[int]]:
        """Play one whole episode of each length, in lanes 0, 1, … that step in turn; the indices of their rows."""
        rows, found = list[dict[str, float]](), [list[int]() for _ in lengths]
        start = self.memory.committed
        for t in range(max(lengths) + 1):
            for lane, length in enumerate(lengths):
                if t <= length:
                    found[lane].append(start + len(rows))
                    rows.append(self.row(t, length, lane, final=t == length, done=True))
        self.write(rows)
        return found

    @staticmethod
    def row(t: int, length: int, lane: int = 0, *, final: bool = False, done: bool = False) -> dict[str, float]:
        """The columns of one row of an episode that are not given by the row's index."""
        is_end = done and t == length - 1
        return {
            "reward": 0.0 if final else 2.0 ** min(t, 100),
            "terminated": is_end and lane % 2 == 0,
            "truncated": is_end and lane % 2 == 1,
            "first": t == 0,
            "final": final,
            "lane": lane,
        }

    def write(self, rows: list[dict[str, float]], *, follows: bool = True) -> None:
        """Store rows of which ``obs``, ``action``, ``logp`` and ``state`` follow from their indices."""
        n = np.arange(self.memory.committed, self.memory.committed + len(rows))
        items: Items = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        items |= {"obs/at": n, "obs/frame": np.stack([n, n], axis=1), "action": 10 * n, "logp": -n, "version": n // 2}
        items |= {"state/h": np.stack([n, n, n], axis=1), "intervened": n % 10 == 3}
        items = {column.name: items[column.name].astype(column.dtype) for column in self.memory.schema.columns}
        self._seq += 1
        self._writer.append(items, len(rows), incarnation=1, seq=self._seq, follows=follows)

    def reader(self, view: View) -> ReplayReader:
        """The rows as they are now."""
        reader = ReplayReader(self.memory, view, np.random.default_rng(0))
        reader.look()
        return reader

    def drawable(self, view: View) -> list[int]:
        """The rows at which a draw can begin now."""
        reader = self.reader(view)
        index = np.arange(reader.first, reader.end)
        return [int(i) for i in index[reader.can_draw(index)]]

    def draw(self, view: View, index: Sequence[int]) -> Items:
        """The batch of draws that begin at these rows."""
        reader = self.reader(view)
        plan = reader.plan(np.array(index))
        taken: dict[str, Array] = {name: reader.take(column, at) for name, (column, at) in plan.takes.items()}
        assert len(plan.lowest) == len(index)
        return {**taken, **plan.made}
