"""Episodes as files of numpy; ``common/episode_files.py`` describes the layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.data import Items, Schema
from common.episode_files import read_episode, read_headers
from common.parts import Parts
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import check_arrays


class NpzEpisodes(EpisodeDataset):
    """The episodes of ``.npz`` files, one a file, in the order of the files' names.

    Args:
        name: as the user named the dataset.
        paths: of the files.

    Raises:
        DatasetError: a file cannot be read, or its arrays are no episode.
    """

    def __init__(self, name: str, paths: list[Path]) -> None:
        super().__init__(name)
        self._headers = {path: read_headers(path) for path in paths}

    def __len__(self) -> int:
        return sum(headers["reward"].shape[0] + 1 for headers in self._headers.values())

    def check(self, parts: Parts) -> None:
        for path, headers in self._headers.items():
            check_arrays(parts.rows, headers, str(path))

    def episodes(self, schema: Schema) -> Iterator[tuple[str, Items]]:  # noqa: ARG002 - all arrays are read
        for path in self._headers:
            yield str(path), read_episode(path)
