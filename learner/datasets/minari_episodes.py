"""Datasets in Minari's format (https://minari.farama.org).

Their steps become rows, as if an actor had just taken them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gymnasium
import minari  # type: ignore[import-untyped]
import numpy as np
from gymnasium.spaces import Dict, flatten, flatten_space
from gymnasium.vector.utils import batch_space, iterate
from minari.storage import get_dataset_path  # type: ignore[import-untyped]

from common.data import Array, Column, Items, Schema
from common.episode_files import headers_of
from common.errors import DatasetError, SchemaMismatchError
from common.parts import Parts
from common.spaces import columns_of, to_columns
from common.spaces import flatten as leaves_of_value
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import check_arrays
from learner.datasets.minari_files import count_steps
from learner.datasets.symlinks import check_links

Space = gymnasium.Space[Any]
_UNREADABLE: Final = (
    *(AssertionError, AttributeError, LookupError, MemoryError),
    *(OSError, OverflowError, RecursionError, TypeError, ValueError),
)
"""The errors that Minari raises for damaged files."""


class MinariEpisodes(EpisodeDataset):
    """The episodes of a Minari dataset as rows of a run.

    Leaves of observations that the run does not use are left out; they may be of any space, such as Text. If the
    environment of the run has plain observations, structured observations of the dataset are flattened as
    ``gymnasium.wrappers.FlattenObservation`` does. Numbers are cast to the columns' dtypes (float64 to float32). The
    column ``info/KEY`` comes from the dataset's infos.

    Args:
        name: as the user named the dataset.
        location: the id of a dataset in Minari's local storage (``MINARI_DATASETS_PATH``), or a dataset's directory.

    Raises:
        DatasetError: there is no such dataset, it cannot be read, or ``count_steps`` refuses it.
        ImportError: a package that Minari needs is not installed.
    """

    def __init__(self, name: str, location: str | Path) -> None:
        super().__init__(name)
        directory = get_dataset_path(location) if isinstance(location, str) else location
        check_links(directory)
        try:
            self._steps = count_steps(directory / "data")
            self._dataset: Any = minari.MinariDataset(directory / "data")
        except _UNREADABLE as error:
            raise DatasetError(f"dataset {name}: cannot be read: {error}") from error

    def __len__(self) -> int:
        return self._steps + int(self._dataset.total_episodes)

    def check(self, parts: Parts) -> None:
        self._require(parts.rows.named("action"), columns_of("action", self._dataset.action_space))
        self._require(parts.rows.named("obs"), columns_of("obs", _as_stored(self._used_space(parts.rows), parts.rows)))

    def episodes(self, schema: Schema) -> Iterator[tuple[str, Items]]:
        used = self._used_space(schema)
        taken = _as_stored(used, schema)
        for number, episode in enumerate(self._episodes()):
            if len(episode):
                found = episode.observations if taken is used else _flattened(used, episode)
                place = f"episode {number} of dataset {self.name}"
                columns = to_columns("obs", leaves_of_value(taken, found)) | self._outcomes(episode)
                check_arrays(schema, headers_of(columns), place)
                yield place, columns

    def _used_space(self, schema: Schema) -> Space:
        """The space of the dataset's observations, without leaves that the run does not use."""
        return _without_others(self._dataset.observation_space, "obs", [column.name for column in schema.named("obs")])

    def _episodes(self) -> Iterator[Any]:
        try:
            yield from self._dataset.iterate_episodes()
        except _UNREADABLE as error:
            raise DatasetError(f"dataset {self.name}: cannot be read: {error}") from error

    def _require(self, expected: tuple[Column, ...], found: tuple[Column, ...]) -> None:
        if not _fit(expected, found):
            raise SchemaMismatchError(
                f"the environment has the columns {_describe(expected)}; dataset {self.name} has {_describe(found)}"
            )

    def _outcomes(self, episode: Any) -> Items:
        """The actions of an episode of T steps and their outcomes, ``[T, *shape]``."""
        steps, infos = len(episode), episode.infos or {}
        return {
            **to_columns("action", leaves_of_value(self._dataset.action_space, episode.actions)),
            "reward": np.asarray(episode.rewards),
            "terminated": np.array(episode.terminations, bool),
            "truncated": np.array(episode.truncations, bool),
            # The first info is that of the reset.
            **{f"info/{key}": np.asarray(infos[key])[-steps:] for key in infos if not isinstance(infos[key], dict)},
        }


def _without_others(space: Space, name: str, used: list[str]) -> Space:
    """A Dict space without the parts that lead to none of the columns ``used``; the space itself if none does."""
    if not isinstance(space, Dict):
        return space
    parts = {key: (f"{name}/{key}", part) for key, part in space.spaces.items()}
    kept = {
        key: _without_others(part, path, used)
        for key, (path, part) in parts.items()
        if any(f"{column}/".startswith(f"{path}/") for column in used)
    }
    return Dict(kept) if kept else space


def _as_stored(space: Space, schema: Schema) -> Space:
    """The space of observations as rows store them: flattened, or unchanged."""
    is_flat = not _fit(schema.named("obs"), columns_of("obs", space)) and space.is_np_flattenable
    return flatten_space(space) if is_flat else space


def _fit(expected: tuple[Column, ...], found: tuple[Column, ...]) -> bool:
    """Whether values of the columns that were found can be stored in those that are expected."""
    return len(expected) == len(found) and all(_fits(*pair) for pair in zip(expected, found, strict=True))


def _fits(expected: Column, found: Column) -> bool:
    """Whether values of one column can be stored in the other. Whole numbers must have the same bounds."""
    if (expected.name, expected.shape) != (found.name, found.shape):
        return False
    if np.dtype(expected.dtype).kind in "iu" and _bounds(expected) != _bounds(found):
        return False
    return np.can_cast(found.dtype, expected.dtype, "same_kind")


def _bounds(column: Column) -> str:
    return f" of {column.domain}" if column.domain is not None and np.dtype(column.dtype).kind in "iu" else ""


def _describe(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column}{_bounds(column)}" for column in columns)


def _flattened(space: Space, episode: Any) -> Array:
    """The observations of an episode of T steps as vectors, ``[T + 1, k]``."""
    rows = iterate(batch_space(space, len(episode) + 1), episode.observations)
    return np.array([flatten(space, row) for row in rows])
