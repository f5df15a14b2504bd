"""Opens the dataset that a user names. A new kind of source is a module beside this one and a branch here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from common.data import Items
from common.errors import DatasetError, PluginError
from common.parts import Parts
from learner.datasets.saved_replay import SavedReplay
from learner.storage.rundir import reading

MINARI: Final = "minari:"
"""The prefix of the id of a dataset in Minari's local storage."""


class Dataset(Protocol):
    """Recorded experience."""

    name: str
    """The name in errors and log lines."""

    def __len__(self) -> int:
        """The number of rows; a step processor may make more or fewer items of them."""

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        """Yield all rows in order, in chunks; a chunk is valid until the next one is asked for.

        With each chunk comes the number of its group, from 0: the lanes of one group are not those of another.

        Args:
            parts: of the run; the rows have the columns of its schema.

        Raises:
            SchemaMismatchError: a column differs from the column that the run expects.
        """


@contextmanager
def open_dataset(source: str) -> Iterator[Dataset]:
    """Open a dataset for reading.

    Args:
        source: ``minari:ID``, the directory of a Minari dataset, or the directory of a run.

    Raises:
        DatasetError: there is no such dataset, or it cannot be read.
        RunDirectoryError: a learner is using the run's directory, or its replay cannot be read.
        PluginError: reading it takes an extra that is not installed.
    """
    path = Path(source)
    if (path / "shared" / "replay").is_dir():
        with reading(path):
            yield SavedReplay(path)
    elif source.startswith(MINARI):
        yield _open_minari(source, source.removeprefix(MINARI))
    elif (path / "data" / "metadata.json").exists():
        yield _open_minari(source, path)
    else:
        raise DatasetError(
            f"dataset: expected minari:ID, a Minari dataset's directory or a run's directory, found '{source}'"
        )


def _open_minari(name: str, location: str | Path) -> Dataset:
    try:
        from learner.datasets.minari_episodes import MinariEpisodes  # noqa: PLC0415 - needs crossborder[offline]

        return MinariEpisodes(name, location)
    except ImportError as error:
        raise PluginError(f"dataset {name}: {error}") from error
