"""Datasets in Minari's format (https://minari.farama.org), read step by step as if an actor had just taken them."""

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
from learner.datasets.datasets import MINARI

try:
    import minari  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(f"{error}; pip install 'crossborder[offline]'") from error

Space = gymnasium.Space[Any]


class MinariEpisodes:
    """The episodes of a Minari dataset, through the step processor of the run.

    Observations that are no Box are flattened to one where the environment's are, as ``gymnasium.wrappers``'
    ``FlattenObservation`` does, and numbers get the dtype that the environment's have (float64 to float32).

    Args:
        source: ``minari:ID`` in the local storage (``MINARI_DATASETS_PATH``), or a dataset's directory.

    Raises:
        DatasetError: there is no such dataset, or it cannot be read.
        ImportError: a package that Minari needs is not installed.
    """

    def __init__(self, source: str) -> None:
        self.name = source
        try:
            self._dataset = _load(source)
        except (OSError, ValueError, KeyError) as error:
            raise DatasetError(f"dataset {source}: cannot be read: {error}") from error

    def __len__(self) -> int:
        return int(self._dataset.total_steps)

    def items(self, parts: Parts) -> Iterator[Items]:
        env, processor = parts.lanes[0].env, parts.lanes[0].processor
        self._check_spaces(env)
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

    def _check_spaces(self, env: Env) -> None:
        observations, actions = self._dataset.observation_space, self._dataset.action_space
        self._require("obs", env.observation_space, _as_in(env.observation_space, observations))
        self._require("action", env.action_space, actions)

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
        if _is_flattened(space, recorded):
            rows = iterate(batch_space(recorded, len(episode) + 1), found)
            found = [flatten(recorded, row) for row in rows]
        return np.asarray(found, space.dtype)


def _load(source: str) -> Any:
    if source.startswith(MINARI):
        return minari.load_dataset(source.removeprefix(MINARI))
    return minari.MinariDataset(Path(source) / "data")


def _is_flattened(space: Space, recorded: Space) -> bool:
    """Whether the environment gives one Box where the dataset has something else."""
    return isinstance(space, gymnasium.spaces.Box) and not isinstance(recorded, gymnasium.spaces.Box)


def _as_in(space: Space, recorded: Space) -> Space:
    return flatten_space(recorded) if _is_flattened(space, recorded) else recorded


def _fits(expected: Space, found: Space) -> bool:
    """Whether elements of ``found`` can stand for those of ``expected``: boxes may differ in bounds and precision."""
    if not isinstance(expected, gymnasium.spaces.Box):
        return expected == found
    same_shape = isinstance(found, gymnasium.spaces.Box) and expected.shape == found.shape
    return same_shape and np.can_cast(found.dtype, expected.dtype, "same_kind")  # type: ignore[arg-type]
