"""What all datasets of whole episodes have in common."""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterator
from pathlib import Path

from common.data import Items, Schema
from common.episode_files import read_episode, read_headers
from common.parts import Parts
from learner.datasets.episode_rows import as_sent, check_arrays, make_rows

log = logging.getLogger(__name__)


class EpisodeDataset(abc.ABC):
    """A dataset of whole episodes: it is checked as a whole before the first row is given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._place, self._unit = name, "step"

    @abc.abstractmethod
    def check(self, parts: Parts) -> None:
        """Check that the arrays of all episodes can be stored in the columns of rows, see ``Dataset.check``."""

    @abc.abstractmethod
    def episodes(self, schema: Schema) -> Iterator[tuple[str, Items]]:
        """Yield all episodes in order, each with its name in messages; see ``make_rows`` for the arrays.

        Raises:
            DatasetError: an episode cannot be read.
        """

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        """Yield all episodes as an actor would send them, see ``Dataset.items``."""
        self.check(parts)
        self._unit = "step" if parts.schema.is_rows else "item"
        left_out: list[float] = []
        for place, episode in self.episodes(parts.rows):
            self._place = place
            rows = make_rows(parts.rows, episode, place)
            if len(rows["reward"]) == len(episode["reward"]):
                left_out.append(float(episode["reward"].reshape(-1)[-1]))  # [T], or [T, 1].
            if len(rows["reward"]) > 1:
                yield 0, as_sent(rows, parts)
        if left_out:
            log.warning(
                "dataset %s: %d episodes did not terminate and have no observation after their last action, so their "
                "last steps are left out, with rewards of up to %g",
                self.name,
                len(left_out),
                max(left_out),
            )

    def name_row(self, row: int) -> str:
        """The place of a row, see ``Dataset.name_row``."""
        return f"{self._unit} {row} of {self._place}"


class NpzEpisodes(EpisodeDataset):
    """The episodes of ``.npz`` files, one a file, in the order of the files' names.

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
