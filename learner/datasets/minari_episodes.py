"""Datasets in Minari's format (https://minari.farama.org).

Their steps become rows, as if an actor had just taken them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import flatten, flatten_space
from gymnasium.vector.utils import batch_space, iterate

from common.data import FINAL, FIRST, LANE, VERSION, Array, Column, Items, Schema
from common.errors import DatasetError, SchemaMismatchError
from common.parts import Parts
from common.spaces import columns_of, to_columns
from common.spaces import flatten as leaves_of_value
from learner.datasets.as_sent import as_sent

try:
    import minari  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[offline]'") from error

Space = gymnasium.Space[Any]
UNKNOWN_AS_ZERO = ("intervened", "state")
"""Extra columns (or the beginnings of their paths) that are zero where a dataset does not have them: nobody intervened,
and a recurrent agent begins with an empty memory."""


class MinariEpisodes:
    """The episodes of a Minari dataset as rows of a run.

    Where the environment of the run has plain observations and the dataset has structured ones, these are flattened as
    ``gymnasium.wrappers.FlattenObservation`` does. Numbers are cast to the columns' dtypes (float64 to float32). The
    column ``info/KEY`` is taken from the dataset's infos.

    Args:
        name: as the user named the dataset.
        location: the id of a dataset in Minari's local storage (``MINARI_DATASETS_PATH``), or a dataset's directory.

    Raises:
        DatasetError: there is no such dataset, or it cannot be read.
        ImportError: a package that Minari needs is not installed.
    """

    def __init__(self, name: str, location: str | Path) -> None:
        self.name = name
        try:
            self._dataset: Any = (
                minari.load_dataset(location) if isinstance(location, str) else minari.MinariDataset(location / "data")
            )
        except (OSError, ValueError, KeyError) as error:
            raise DatasetError(f"dataset {name}: cannot be read: {error}") from error

    def __len__(self) -> int:
        return int(self._dataset.total_steps + self._dataset.total_episodes)

    def items(self, parts: Parts) -> Iterator[tuple[int, Items]]:
        schema = parts.rows
        self._require(schema.named("action"), columns_of("action", self._dataset.action_space))
        observations: Space = self._dataset.observation_space
        is_flat = not _fit(schema.named("obs"), columns_of("obs", observations)) and observations.is_np_flattenable
        taken = flatten_space(observations) if is_flat else observations
        self._require(schema.named("obs"), columns_of("obs", taken))
        for episode in self._episodes():
            if len(episode):
                found = _flattened(observations, episode) if is_flat else episode.observations
                rows = self._rows(schema, episode, to_columns("obs", leaves_of_value(taken, found)))
                yield 0, as_sent(rows, parts)

    def _episodes(self) -> Iterator[Any]:
        try:
            yield from self._dataset.iterate_episodes()
        except (OSError, ValueError, KeyError) as error:
            raise DatasetError(f"dataset {self.name}: cannot be read: {error}") from error

    def _require(self, expected: tuple[Column, ...], found: tuple[Column, ...]) -> None:
        if not _fit(expected, found):
            raise SchemaMismatchError(
                f"the environment has the columns {_describe(expected)}; dataset {self.name} has {_describe(found)}"
            )

    def _rows(self, schema: Schema, episode: Any, obs: Items) -> Items:
        """The rows of one episode of T steps, ``[T + 1, *shape]``; an episode without an end counts as cut off."""
        steps = len(episode)
        actions = to_columns("action", leaves_of_value(self._dataset.action_space, episode.actions))
        terminated, truncated = np.array(episode.terminations, bool), np.array(episode.truncations, bool)
        truncated[-1] |= not terminated[-1]
        place = np.arange(steps + 1)
        known = {
            **obs,
            **{name: np.concatenate([values, values[-1:]]) for name, values in actions.items()},
            "reward": np.append(episode.rewards, 0),
            "terminated": np.append(terminated, False),
            "truncated": np.append(truncated, False),
            VERSION.name: np.zeros(steps + 1),
            FIRST.name: place == 0,
            FINAL.name: place == steps,
            LANE.name: np.zeros(steps + 1),
        }
        return {c.name: self._column(c, known, episode, steps) for c in schema.columns}

    def _column(self, column: Column, known: Items, episode: Any, steps: int) -> Array:
        if column.name in known:
            return known[column.name].astype(column.dtype)
        key = column.name.removeprefix("info/")
        if key != column.name and key in (episode.infos or {}):
            values = np.asarray(episode.infos[key])[-steps:]  # Minari keeps the info of the reset too.
            return np.concatenate([values, np.zeros_like(values[:1])]).astype(column.dtype)
        if column.name.partition("/")[0] in UNKNOWN_AS_ZERO:
            return np.zeros((steps + 1, *column.shape), column.dtype)
        raise SchemaMismatchError(f"column '{column.name}': the run's rows have it, dataset {self.name} does not")


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
