"""Pictures of recorded episodes, labelled as success or failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gymnasium
import numpy as np

from common.agents.networks.picture_networks import is_picture
from common.data import Array
from common.episode_files import SUFFIX, read_episode, read_headers
from common.errors import DatasetError
from common.hints import nearest, nearest_path
from common.lanes.lanes import DISCARDED, SUCCESS
from common.spaces import name_of

IS_SUCCESS: Final = f"info/{SUCCESS}"


@dataclass(frozen=True)
class LabelledEpisode:
    """The pictures after each of the T steps of an episode.

    Args:
        pictures: uint8 ``[T, *shape]`` by path.
        is_success: ``[T]`` bool.
    """

    pictures: dict[str, Array]
    is_success: Array

    @property
    def succeeds(self) -> bool:
        """Whether any picture shows success."""
        return bool(self.is_success.any())


def read_labelled(directories: Sequence[Path], keys: Sequence[str] = ()) -> list[LabelledEpisode]:
    """Read the pictures and labels of all episodes in some directories (``common/episode_files.py`` has the layout).

    The label of a step is ``info/is_success``; in a file without it, a reward above 0 is a success. Episodes that a
    person has discarded are left out.

    Args:
        directories: of episode files.
        keys: paths of the pictures in observations; none: all pictures.

    Raises:
        DatasetError: there is no episode, a file cannot be read, or lacks the pictures that the first file has.
    """
    paths = [path for directory in directories for path in _list_files(directory)]
    shapes = _find_pictures(paths[0], keys)
    episodes = [_read_one(path, shapes) for path in paths]
    kept = [episode for episode in episodes if episode is not None]
    if not kept:
        raise DatasetError(f"{', '.join(map(str, directories))}: expected episodes, found only discarded ones")
    return kept


def _list_files(directory: Path) -> list[Path]:
    paths = sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else []
    if not paths:
        raise DatasetError(
            f"{directory}: expected a directory of {SUFFIX} episodes, found none{nearest_path(directory)}"
        )
    return paths


def _find_pictures(path: Path, keys: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the wanted pictures of an episode, by path."""
    found: dict[str, tuple[int, ...]] = {}
    for name, header in read_headers(path).items():
        if name.partition("/")[0] == "obs" and header.dtype == np.uint8:
            shape = header.shape[1:]
            if is_picture(gymnasium.spaces.Box(0, 255, shape, np.uint8)):
                found[name.partition("/")[2]] = shape
    for key in keys:
        if key not in found:
            raise DatasetError(f"{path}: expected a picture 'obs/{key}' of uint8{nearest(key, found)}")
    if not found:
        raise DatasetError(f"{path}: expected observations with pictures of uint8, found none")
    return {key: found[key] for key in keys or found}


def _read_one(path: Path, shapes: dict[str, tuple[int, ...]]) -> LabelledEpisode | None:
    """One episode; None if a person has discarded it."""
    columns = read_episode(path)
    if columns.get(f"info/{DISCARDED}", np.zeros(1)).any():
        return None
    pictures = {}
    for key, shape in shapes.items():
        name = name_of("obs", key)
        column = columns.get(name)
        if column is None or column.dtype != np.uint8 or column.shape[1:] != shape:
            found = "none" if column is None else f"{column.dtype} {list(column.shape[1:])}"
            raise DatasetError(f"{path}: array '{name}': expected pictures of uint8 {list(shape)}, found {found}")
        pictures[key] = column[1:]
    reward = columns["reward"]
    is_success = np.asarray(columns[IS_SUCCESS], bool) if IS_SUCCESS in columns else reward > 0
    if is_success.shape != reward.shape:
        raise DatasetError(
            f"{path}: array '{IS_SUCCESS}': expected the shape {list(reward.shape)}, found {list(is_success.shape)}"
        )
    return LabelledEpisode(pictures, is_success)
