"""The replay of an earlier run as a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from common.data import PRIORITY, Array, Items
from common.parts import Parts
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.recovery import find_whole_bounds

CHUNK: Final = 1024
"""Items that are read at a time."""


class SavedReplay:
    """The items in the replay of an earlier run, without those that a power cut or a kill damaged.

    The columns of the items must be those of the run that reads them. That both runs have the same settings of the step
    processor, such as its n and its discount, cannot be checked here. A column of first priorities is left out for a
    run whose items have none.

    Args:
        directory: of the earlier run. No other process may write there.

    Raises:
        RunDirectoryError: the directory holds no replay that can be read.
    """

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._memory = ReplayMemory.open_saved(directory / "shared" / "replay")
        self._first, self._end = find_whole_bounds(self._memory)

    def __len__(self) -> int:
        return self._end - self._first

    def items(self, parts: Parts) -> Iterator[Items]:
        schema = self._memory.schema
        if PRIORITY not in parts.schema.columns:
            schema = schema.without(PRIORITY)
        schema.require_equal(parts.schema, mine=f"dataset {self.name}", theirs="this run")
        reader = ReplayReader(self._memory)
        for start in range(self._first, self._end, CHUNK):
            index = np.arange(start, min(start + CHUNK, self._end))
            _, items = reader.take(partial(_choose, index), len(index))
            yield {column.name: items[column.name] for column in schema.columns}


def _choose(index: Array, _: int) -> Items:
    """A ``DrawIndices`` that chooses the items at ``index``, not random ones."""
    return {"index": index}
