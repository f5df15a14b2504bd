"""Episodes as rows of parquet files.

A row is a step. Its columns have the names of the arrays of ``common/episode_files.py``; values with dimensions are
nested lists. The column ``episode`` numbers the episodes of a file; without it, a file is one episode. If a column
``final`` is True in the last row of an episode, only the observation of this row counts: it is the observation after
the last action. ``make_rows`` says how it treats an episode without a final row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.data import FINAL, Items, Schema
from common.episode_files import ArrayHeader, is_of_layout
from common.errors import DatasetError
from common.parts import Parts
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import check_arrays
from learner.datasets.step_table import Episode, StepTable


class ParquetEpisodes(EpisodeDataset):
    """The episodes of parquet files, in the order of the files' names and of their rows.

    Args:
        name: as the user named the dataset.
        paths: of the files.

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
