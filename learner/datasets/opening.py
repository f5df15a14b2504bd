"""Opens the dataset that a user names. A new kind of source is a module beside this one and a branch here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from common.data import Items
from common.episode_files import SUFFIX as NPZ
from common.errors import DatasetError, PluginError
from common.hints import nearest_path
from common.home import expand_path
from common.parts import Parts
from learner.datasets.episode_dataset import NpzEpisodes
from learner.datasets.saved_replay import SavedReplay
from learner.datasets.symlinks import check_links
from learner.storage.run_lock import reading

MINARI: Final = "minari:"
"""The prefix of the id of a dataset in Minari's local storage."""
PARQUET: Final = ".parquet"


class Dataset(Protocol):
    """Recorded experience."""

    name: str
    """The name in errors and log lines."""

    def __len__(self) -> int:
        """The number of rows; a step processor may make more or fewer items of them."""

    def check(self, parts: Parts) -> None:
        """Check that the run can store the rows, as far as this is known without reading them.

        Args:
            parts: of the run; the rows have the columns of its schema.

        Raises:
            SchemaMismatchError: a column differs from the column that the run expects.
            DatasetError: a file that holds rows is missing.
        """

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        """Yield all rows in order, in chunks; a chunk is valid until the next one is asked for.

        Each chunk comes with the number of its group, from 0. Groups have different lanes, even if lane numbers are
        equal.

        Raises:
            SchemaMismatchError: see ``check``.
            DatasetError: see ``check``, or rows cannot be read.
        """

    def name_row(self, row: int) -> str:
        """The place of a row of the newest chunk, in words: ``step 5 of FILE``.

        Args:
            row: counts from 0 in the chunk.
        """


@contextmanager
def open_dataset(source: str) -> Iterator[Dataset]:
    """Open a dataset for reading.

    Args:
        source: ``minari:ID``, the directory of a Minari dataset, of a LeRobot dataset or of a run, a directory of
            ``.npz`` or of ``.parquet`` episodes, or one such file.

    Raises:
        DatasetError: there is no such dataset, it cannot be read, or a link leads out of its directory.
        RunDirectoryError: a learner is using the run's directory, or its replay cannot be read.
        ConfigError: it lies in a home that is not known.
        PluginError: reading it takes an extra that is not installed.
    """
    path = expand_path(source, "dataset")
    if (path / "shared" / "replay").is_dir():
        check_links(path, "lock", "shared")
        with reading(path):
            yield SavedReplay(path)
    else:
        yield _open_episodes(str(path), path)


def _open_episodes(source: str, path: Path) -> Dataset:
    """A dataset of whole episodes."""
    if path.is_dir():
        check_links(path)
    if source.startswith(MINARI):
        return _open_minari(source, source.removeprefix(MINARI))
    if (path / "data" / "metadata.json").exists():
        return _open_minari(source, path)
    if (path / "meta" / "info.json").exists():
        return _open_lerobot(source, path)
    files = {suffix: _files(path, suffix) for suffix in (NPZ, PARQUET)}
    match [suffix for suffix, paths in files.items() if paths]:
        case [suffix]:
            return (NpzEpisodes if suffix == NPZ else _open_parquet)(source, files[suffix])
        case [_, _]:
            raise DatasetError(f"dataset {source}: expected files of one kind, found .npz and .parquet files")
    if not path.exists():
        why = f", which does not exist{nearest_path(path)}"
    else:
        is_empty = path.is_dir() and not any(path.iterdir())
        why = ", which is empty: no whole episode was recorded there" if is_empty else ""
    raise DatasetError(
        "dataset: expected minari:ID, a Minari or LeRobot dataset's directory, a run's directory, or .npz or .parquet "
        f"episodes (a directory of them, or a file), found '{source}'{why}"
    )


def _files(path: Path, suffix: str) -> list[Path]:
    """The file itself, or the files of a directory by name, without hidden files: these are still being written."""
    if path.is_file():
        return [path] if path.suffix == suffix else []
    return sorted(found for found in path.glob(f"*{suffix}") if not found.name.startswith("."))


def _open_minari(name: str, location: str | Path) -> Dataset:
    with _needing("offline", name):
        from learner.datasets.minari_episodes import MinariEpisodes  # noqa: PLC0415 - its packages may be missing

        return MinariEpisodes(name, location)


def _open_parquet(name: str, paths: list[Path]) -> Dataset:
    with _needing("lerobot", name):
        from learner.datasets.parquet_episodes import ParquetEpisodes  # noqa: PLC0415 - its packages may be missing

        return ParquetEpisodes(name, paths)


def _open_lerobot(name: str, directory: Path) -> Dataset:
    with _needing("lerobot", name):
        from learner.datasets.lerobot_episodes import LeRobotEpisodes  # noqa: PLC0415 - its packages may be missing

        return LeRobotEpisodes(name, directory)


@contextmanager
def _needing(extra: str, name: str) -> Iterator[None]:
    """Name the dataset, and the extra that it needs, in the error of an import."""
    try:
        yield
    except ImportError as error:
        raise PluginError(f"dataset {name}: {error}; pip install 'crossborder[{extra}]'") from error
