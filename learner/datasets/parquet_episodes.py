"""Episodes as rows of parquet files.

A row is a step. Its columns have the names of the arrays of ``common/episode_files.py``; values with dimensions are
nested lists. The column ``episode`` numbers the episodes of a file; without it, a file is one episode. If a column
``final`` is True in the last row of an episode, only the observation of this row counts: it is the observation after
the last action. ``make_rows`` says how it treats an episode without a final row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from common.data import FINAL, Array, Items, Schema
from common.episode_files import ArrayHeader, check_inflated, is_of_layout
from common.errors import DatasetError
from common.parts import Parts
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import check_arrays

NUMBERS: Final = ("episode", "episode_index")
"""A column of one of these names numbers the episodes of a file; without it, a file is one episode."""

_BYTES: Final = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
"""The size of a value by its type in the file, for types of fixed size."""
ROWS_AT_ONCE: Final = 128
"""Rows that are read at a time. The number is small, since rows may hold pictures."""


class Episode(NamedTuple):
    """The rows of one episode in a file."""

    number: int
    start: int
    stop: int


class StepTable:
    """A parquet file whose rows are steps in the order of time, one episode after another.

    Raises:
        DatasetError: the file cannot be read, is empty, inflates to far more than its size, or an episode is in more
            than one piece.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._naming_the_file():
            self._file = pq.ParquetFile(path)
            self.names: list[str] = self._file.schema_arrow.names
            if twice := [name for name, count in Counter(self.names).items() if count > 1]:
                raise DatasetError(f"{path}: expected each column once, found '{twice[0]}' again")
            check_inflated(path, _count_bytes(self._file.metadata))
            self.episodes = self._find_episodes()

    def _find_episodes(self) -> list[Episode]:
        rows = self._file.metadata.num_rows
        if not rows:
            raise DatasetError(f"{self.path}: expected steps, found none")
        name = next((name for name in NUMBERS if name in self.names), None)
        if name is None:
            return [Episode(0, 0, rows)]
        numbers = self.array(self._file.read([name]), name)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            kind = ArrayHeader(numbers.dtype, numbers.shape[1:])
            raise DatasetError(f"{self.path}: column '{name}': expected a whole number in each row, found {kind}")
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
        found = [int(numbers[start]) for start in starts]
        if len(set(found)) < len(found):
            again = next(number for number, pieces in Counter(found).items() if pieces > 1)
            raise DatasetError(f"{self.path}: column '{name}': expected the rows of episode {again} in one piece")
        return [Episode(*each) for each in zip(found, starts, [*starts[1:], rows], strict=True)]

    def headers(self, names: Iterable[str]) -> dict[str, ArrayHeader]:
        """Dtypes and shapes of these columns, ``[rows, *shape]``; the first row decides on the shapes.

        Raises:
            DatasetError: a value of the first row is missing.
        """
        with self._naming_the_file():
            first = next(self._file.iter_batches(1, columns=list(names)))
        arrays = {name: self.array(first, name) for name in names}
        return {name: ArrayHeader(a.dtype, (self._file.metadata.num_rows, *a.shape[1:])) for name, a in arrays.items()}

    def read(self, names: Iterable[str]) -> Iterator[tuple[Episode, Any]]:
        """Yield each episode with a table of these columns. The file is read piece by piece.

        Raises:
            DatasetError: a piece cannot be read, or a file inflates to far more than its size: texts and pictures that
                are repeated are stored once, so only reading shows their bytes.
        """
        batches = self._file.iter_batches(ROWS_AT_ONCE, columns=list(names))
        waiting, begin, size = pa.Table.from_batches([], self._file.schema_arrow).select(list(names)), 0, 0
        for episode in self.episodes:
            pieces, end = [waiting], begin + len(waiting)
            while end < episode.stop:
                with self._naming_the_file():
                    pieces.append(pa.Table.from_batches([next(batches)]))
                end, size = end + len(pieces[-1]), size + pieces[-1].nbytes
                check_inflated(self.path, size)
            waiting = pa.concat_tables(pieces)
            yield episode, waiting.slice(episode.start - begin, episode.stop - episode.start)
            waiting, begin = waiting.slice(episode.stop - begin), episode.stop

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{self.path}: expected a parquet file, which cannot be read: {error}") from error

    def array(self, table: Any, name: str) -> Array:
        """A column of a table or batch as an array, ``[rows, *shape]``; nested lists are its further dimensions.

        Raises:
            DatasetError: a value is missing, or lists are not of one length.
        """
        values = table.column(name)
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        shape = [len(values)]
        while (
            pa.types.is_list(kind := values.type) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        ):
            lengths = [] if values.null_count else pc.unique(pc.list_value_length(values)).to_pylist()
            if len(lengths) != 1:
                found = ", ".join(map(str, sorted(lengths))) or "null"
                raise DatasetError(f"{self.path}: column '{name}': expected lists of one length, found {found}")
            shape.append(lengths[0])
            values = values.flatten()
        if values.null_count:
            raise DatasetError(f"{self.path}: column '{name}': expected a value in each row, found null")
        array: Array = values.to_numpy(zero_copy_only=False).reshape(shape)
        return array


def _count_bytes(metadata: Any) -> int:
    """The bytes of all values, which may be far more than the file has: a repeated value is stored once."""
    size = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            values = column.num_values * _BYTES.get(column.physical_type, 0)
            size += max(values, column.total_uncompressed_size)
    return size


class ParquetEpisodes(EpisodeDataset):
    """The episodes of parquet files, in the order of the files' names and of their rows.

    Raises:
        DatasetError: a file cannot be read, is empty, or an episode is in more than one piece.
    """

    def __init__(self, name: str, paths: list[Path]) -> None:
        super().__init__(name)
        self._tables = [StepTable(path) for path in paths]

    def __len__(self) -> int:
        return sum(episode.stop - episode.start + 1 for table in self._tables for episode in table.episodes)

    def check(self, parts: Parts) -> None:
        for table in self._tables:
            headers = table.headers([name for name in table.names if is_of_layout(name)])
            check_arrays(parts.rows, headers, str(table.path))

    def episodes(self, schema: Schema) -> Iterator[tuple[str, Items]]:
        known = {column.name for column in schema.columns}
        for table in self._tables:
            names = [name for name in table.names if name == FINAL.name or (is_of_layout(name) and name in known)]
            for episode, rows in table.read(names):
                yield name_episode(table, episode), self._arrays(table, rows)

    def _arrays(self, table: StepTable, rows: Any) -> Items:
        """The arrays of one episode: observations ``[T + 1 or T, *shape]``, the others ``[T, *shape]``."""
        steps = len(rows)
        if FINAL.name in rows.column_names:
            final = table.array(rows, FINAL.name)
            if final.size != steps or final.dtype.kind not in "biuf":
                found = ArrayHeader(final.dtype, final.shape[1:])
                raise DatasetError(f"{table.path}: column 'final': expected True or False in each row, found {found}")
            final = final.reshape(-1)  # An array of one element is as good as a number.
            if final[:-1].any():
                raise DatasetError(f"{table.path}: column 'final': expected True in the last row of an episode only")
            steps -= int(final[-1])
            if not steps:
                raise DatasetError(f"{table.path}: expected episodes of at least one step, found only a final row")
        names = [name for name in rows.column_names if name != FINAL.name]
        return {
            name: table.array(rows if name.partition("/")[0] == "obs" else rows.slice(0, steps), name) for name in names
        }


def name_episode(table: StepTable, episode: Episode) -> str:
    """An episode in messages."""
    return f"episode {episode.number} of {table.path}" if len(table.episodes) > 1 else str(table.path)
