"""Where offline training takes its items from: a Minari dataset, or the replay of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from common.data import PRIORITY, Array, Items
from common.errors import DatasetError, PluginError
from common.parts import Parts
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.recovery import find_whole_bounds
from learner.storage.rundir import reading

MINARI: Final = "minari:"
ROWS: Final = 1024
"""Items that are read from an earlier replay at a time."""


class Dataset(Protocol):
    """Recorded experience."""

    name: str

    def __len__(self) -> int:
        """Steps it holds."""

    def items(self, parts: Parts) -> Iterator[Items]:
        """All its items for a run of these parts, in order and some at a time, each valid until the next.

        Raises:
            SchemaMismatchError: naming the column, what the run expects and what the dataset has.
        """


class SavedReplay:
    """The items in the replay of an earlier run, those that are whole.

    Their columns must be this run's; that its step processor has the settings of theirs is for the user to see to.
    First priorities, if they have any, are left out where this run's items have none.

    Args:
        directory: of the run. Nobody may be writing there.

    Raises:
        RunDirectoryError: it holds no replay that can be read.
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
        for start in range(self._first, self._end, ROWS):
            index = np.arange(start, min(start + ROWS, self._end))
            index = index[~self._memory.is_excluded(index)]
            _, items = reader.take(partial(_these, index), len(index))
            yield {column.name: items[column.name] for column in schema.columns}


def _these(index: Array, _: int) -> Items:
    return {"index": index}


@contextmanager
def open_dataset(source: str) -> Iterator[Dataset]:
    """Open what ``source`` names: ``minari:ID``, a Minari dataset's directory, or a run's directory.

    Raises:
        DatasetError: there is no such thing, or it cannot be read.
        RunDirectoryError: a learner is using the run's directory, or its replay cannot be read.
        PluginError: reading it takes an extra that is not installed.
    """
    path = Path(source)
    if (path / "shared" / "replay").is_dir():
        with reading(path):
            yield SavedReplay(path)
    elif source.startswith(MINARI) or list(path.glob("data/metadata.json")):
        yield _open_minari(source)
    else:
        raise DatasetError(
            f"dataset: expected minari:ID, a Minari dataset's directory or a run's directory, found '{source}'"
        )


def _open_minari(source: str) -> Dataset:
    try:
        from learner.datasets.minari_episodes import MinariEpisodes  # noqa: PLC0415 - it needs an extra

        return MinariEpisodes(source)
    except ImportError as error:
        raise PluginError(f"dataset {source}: {error}") from error
