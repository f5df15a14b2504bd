"""Datasets in Minari's format (https://minari.farama.org).

Their steps go through the step processor of the run, as if an actor had just taken them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import flatten, flatten_space
from gymnasium.vector.utils import batch_space, iterate

from common.data import Array, Items
from common.envs import Env
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import Step
from common.parts import Parts

try:
    import minari  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[offline]'") from error

Space = gymnasium.Space[Any]


class MinariEpisodes:
    """The episodes of a Minari dataset as items of a run.

    Where the environment of the run has Box observations and the dataset has others, these are flattened as
    ``gymnasium.wrappers.FlattenObservation`` does. Numbers are cast to the environment's dtypes (float64 to float32).

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
        return int(self._dataset.total_steps)

    def items(self, parts: Parts) -> Iterator[Items]:
        env, processor = parts.lanes[0].env, parts.lanes[0].processor
        observations, actions = self._dataset.observation_space, self._dataset.action_space
        self._require("obs", env.observation_space, _flattened_like(env.observation_space, observations))
        self._require("action", env.action_space, actions)
        for episode in self._episodes():
            processor.reset()
            steps = self._steps(episode, env)
            ready = [items for step in steps if (items := processor.process(step)) is not None]
            if ready:
                yield {name: np.concatenate([items[name] for items in ready]) for name in ready[0]}

    def _episodes(self) -> Iterator[Any]:
        try:
            yield from self._dataset.iterate_episodes()
        except (OSError, ValueError, KeyError) as error:
            raise DatasetError(f"dataset {self.name}: cannot be read: {error}") from error

    def _require(self, column: str, expected: Space, found: Space) -> None:
        if not _fits(expected, found):
            raise SchemaMismatchError(
                f"column '{column}': the environment has {expected}, dataset {self.name} has {found}"
            )

    def _steps(self, episode: Any, env: Env) -> Iterator[Step]:
        obs = self._observations(episode, env.observation_space)  # [T + 1, *shape]
        actions: Array = np.asarray(episode.actions, env.action_space.dtype)  # [T, *shape]
        for t in range(len(episode)):
            terminated, truncated = bool(episode.terminations[t]), bool(episode.truncations[t])
            yield Step(obs[t], actions[t], float(episode.rewards[t]), obs[t + 1], terminated, truncated)

    def _observations(self, episode: Any, space: Space) -> Array:
        recorded, found = self._dataset.observation_space, episode.observations
        if _needs_flattening(space, recorded):
            rows = iterate(batch_space(recorded, len(episode) + 1), found)
            found = [flatten(recorded, row) for row in rows]
        return np.asarray(found, space.dtype)


def _needs_flattening(space: Space, recorded: Space) -> bool:
    """Whether the environment's observations are a Box and the dataset's are not."""
    return isinstance(space, gymnasium.spaces.Box) and not isinstance(recorded, gymnasium.spaces.Box)


def _flattened_like(space: Space, recorded: Space) -> Space:
    return flatten_space(recorded) if _needs_flattening(space, recorded) else recorded


def _fits(expected: Space, found: Space) -> bool:
    """Whether the environment's space takes the dataset's values; boxes may differ in bounds and in precision."""
    if not isinstance(expected, gymnasium.spaces.Box):
        return expected == found
    same_shape = isinstance(found, gymnasium.spaces.Box) and expected.shape == found.shape
    return same_shape and np.can_cast(found.dtype, expected.dtype, "same_kind")  # type: ignore[arg-type]
