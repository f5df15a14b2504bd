"""The replay of an earlier run as a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from common.data import LANE, PRIORITY, Array, Items, Schema
from common.parts import Parts
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import find_whole_bounds

CHUNK: Final = 4096
"""Rows that are read at a time."""
MAX_LANES: Final = 1 << 16
"""The column ``lane`` has 16 bits."""


class SavedReplay:
    """The rows in the replay of an earlier run, without those that a power cut or a kill damaged.

    The columns of the rows must be those of the run that reads them. The step processors of both runs must have equal
    settings, which cannot be checked here. A column of first priorities is left out for a run whose rows have none.

    Rows that were linked in the earlier replay get the same lane, and all others get different lanes, so that a new
    replay links the rows as the earlier one did.

    Args:
        directory: of the earlier run. No other process may write there.

    Raises:
        RunDirectoryError: the directory holds no replay that can be read.
    """

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._memory = ReplayMemory.open_saved(directory / "shared" / "replay")
        self._first, self._end = find_whole_bounds(self._memory)
        self._given = 0

    def __len__(self) -> int:
        return self._end - self._first

    def check(self, parts: Parts) -> None:
        schema = self._memory.schema
        if PRIORITY not in parts.schema.columns and PRIORITY in schema.columns:
            schema = schema.without(PRIORITY)
        schema.require_equal(parts.schema, mine=f"dataset {self.name}", theirs="this run")

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        self.check(parts)
        chains, self._given = self._number_chains(), 0
        for start in range(self._first, self._end, CHUNK):
            rows = np.arange(start, min(start + CHUNK, self._end))
            yield from self._split(parts.schema, rows, chains[rows - self._first])

    def name_row(self, row: int) -> str:
        """The place of a row, counted from the oldest one of the earlier replay; see ``Dataset.name_row``."""
        return f"row {self._given + row}"

    def _split(self, schema: Schema, rows: Array, chains: Array) -> Iterator[tuple[int, Items]]:
        """The rows with these absolute indices ``[n]``, by group: each group has lanes of its own."""
        groups = chains // MAX_LANES
        for group in np.unique(groups):
            mine = groups == group
            slots = rows[mine] % self._memory.n_slots
            items = {column.name: self._memory.columns[column.name][slots] for column in schema.columns}
            if schema.is_rows:
                items[LANE.name] = (chains[mine] % MAX_LANES).astype(np.uint16)
            yield int(group), items
            self._given += len(slots)

    def _number_chains(self) -> Array:
        """For each row the number of its chain, ``[n]`` int64: linked rows are one chain. Chains count from 0."""
        n, links = len(self), self._memory.links
        if links is None:
            return np.zeros(n, np.int64)
        at = np.arange(n)
        offsets = links.previous[(at + self._first) % self._memory.n_slots].astype(np.int64)
        head = at - np.where(offsets <= at, offsets, 0)
        while (head[head] != head).any():  # Each round doubles how far back a row has looked for its chain's beginning.
            head = head[head]
        numbers: Array = np.unique(head, return_inverse=True)[1]
        return numbers
