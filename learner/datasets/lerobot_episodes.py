"""Datasets in LeRobot's format, versions 2.1 and 3.0 (https://github.com/huggingface/lerobot).

A column of the run is taken from the feature whose name ends in the column's path: ``obs/front`` from
``observation.images.front``, ``obs/state`` from ``observation.state``, ``info/success`` from ``next.success``. Rewards
are ``next.reward``. An episode terminated if ``next.done`` is True and ``next.truncated`` is not; otherwise it was cut
off. LeRobot's own learner also reads ``next.done`` as a termination.

A frame of a LeRobot dataset has no observation after its action; ``make_rows`` says how it treats the last frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Array, Column, Items, Schema
from common.depth import parse_json
from common.episode_files import ArrayHeader
from common.errors import DatasetError, SchemaMismatchError
from common.parts import Parts
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import NOT_NEEDED, check_arrays, required_columns
from learner.datasets.lerobot_pictures import (
    CHANNELS,
    VideoFiles,
    arranged_shape,
    decode_clip,
    decode_pictures,
    fill_template,
)
from learner.datasets.parquet_episodes import Episode, StepTable, name_episode

DONE: Final = "next.done"
TRUNCATED: Final = "next.truncated"


class LeRobotEpisodes(EpisodeDataset):
    """The episodes of a LeRobot dataset.

    Raises:
        DatasetError: a file cannot be read, or the dataset is of another version.
    """

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        info = read_info(directory / "meta" / "info.json")
        self._fps, self._features = float(info["fps"]), info["features"]
        paths = sorted((directory / "data").rglob("*.parquet"))
        if not paths:
            raise DatasetError(f"{directory / 'data'}: expected parquet files, found none")
        self._tables = [StepTable(path) for path in paths]
        self._cameras = [name for name, feature in self._features.items() if feature["dtype"] == "video"]
        self._videos = VideoFiles(directory, info, self._cameras) if self._cameras else None

    def __len__(self) -> int:
        return sum(episode.stop - episode.start + 1 for table in self._tables for episode in table.episodes)

    def check(self, parts: Parts) -> None:
        schema = parts.rows
        taken = match_features(schema, self._features, f"dataset {self.name}")
        pictures = {
            name: picture_header(schema.by_name[name], self._features[feature])
            for name, feature in taken.items()
            if is_picture(self._features[feature])
        }
        for table in self._tables:
            stored = [feature for feature in taken.values() if feature not in self._cameras]
            if lacking := [feature for feature in stored if feature not in table.names]:
                raise DatasetError(f"{table.path}: expected a column '{lacking[0]}', found {', '.join(table.names)}")
            headers = table.headers(stored)
            numbers = {name: headers[feature] for name, feature in taken.items() if name not in pictures}
            check_arrays(schema, numbers | pictures, str(table.path))
            for episode in table.episodes:
                for feature in {*taken.values()} & {*self._cameras}:
                    self._video_files.find(episode.number, feature)

    def episodes(self, schema: Schema) -> Iterator[tuple[str, Items]]:
        taken = match_features(schema, self._features, f"dataset {self.name}")
        for table in self._tables:
            wanted = {*taken.values(), DONE, TRUNCATED} - {*self._cameras}
            for episode, rows in table.read([name for name in table.names if name in wanted]):
                arrays = {
                    name: self._read(feature, schema.by_name[name].shape, table, episode, rows)
                    for name, feature in taken.items()
                }
                yield name_episode(table, episode), arrays | _read_ends(table, rows)

    def _read(self, feature: str, shape: tuple[int, ...], table: StepTable, episode: Episode, rows: Any) -> Array:
        """The values of one feature in an episode of T frames, ``[T, *shape]``."""
        match self._features[feature]["dtype"]:
            case "video":
                return decode_clip(self._video_files.find(episode.number, feature), len(rows), self._fps, shape)
            case "image":
                return decode_pictures(rows.column(feature).to_pylist(), shape, table.path)
        return table.array(rows, feature)

    @property
    def _video_files(self) -> VideoFiles:
        assert self._videos is not None, "only a dataset with cameras has features of videos"
        return self._videos


def _read_ends(table: StepTable, rows: Any) -> Items:
    """``terminated`` and ``truncated``, each ``[T]``; without ``next.done`` an episode was cut off."""
    found = {name: table.array(rows, name).reshape(-1) != 0 for name in (DONE, TRUNCATED) if name in rows.column_names}
    if DONE not in found:
        return {}
    truncated = found.get(TRUNCATED, found[DONE] & False)
    return {"terminated": found[DONE] & ~truncated, "truncated": truncated}


VERSIONS: Final = ("v2.", "v3.")
REWARD: Final = "next.reward"
STARTS: Final = {"obs": "observation", "action": "action", "reward": REWARD}
"""The beginning of the names of the features for each group of columns; extra columns come from other features."""
NAMES_OF_CHANNELS: Final = ("channels", "channel", "c", "rgb")
KINDS_OF_PICTURES: Final = ("video", "image")


def read_info(path: Path) -> dict[str, Any]:
    """The contents of ``meta/info.json``.

    Raises:
        DatasetError: it cannot be read, or the dataset is of another version.
    """
    try:
        info: dict[str, Any] = parse_json(path.read_text())
        version = info["codebase_version"]
        _convert_values(info)
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{path}: expected a LeRobot dataset's version, fps and features, found {error!r}"
        ) from error
    if not str(version).startswith(VERSIONS):
        raise DatasetError(f"{path}: expected a LeRobot dataset of version 2 or 3, found {version}")
    return info


def _convert_values(info: Mapping[str, Any]) -> None:
    """Convert the values that are used later, so that a value of a wrong type raises here."""
    float(info["fps"])
    pictures = [feature for feature in info["features"].values() if is_picture(feature)]
    for picture in pictures:
        _, _, _ = map(int, picture["shape"])
    if any(picture["dtype"] == "video" for picture in pictures):
        if int(info["chunks_size"]) < 1:
            raise ValueError(f"chunks_size: expected 1 or more, found {info['chunks_size']}")
        numbers = dict.fromkeys(("episode_chunk", "episode_index", "chunk_index", "file_index"), 0)
        fill_template(str(info["video_path"]), video_key="", **numbers)


def match_features(schema: Schema, features: Mapping[str, Any], place: str) -> dict[str, str]:
    """The feature from which each column is taken, by column.

    Raises:
        SchemaMismatchError: a column that the run needs has no feature, or several.
    """
    needed = {column.name for column in required_columns(schema)}
    taken = {}
    for column in schema.columns:
        if column.name in NOT_NEEDED:
            continue
        found, known = _find(column.name, features)
        if len(found) == 1:
            taken[column.name] = found[0]
        elif found or column.name in needed:
            raise SchemaMismatchError(_describe(column, found, known, place))
    return taken


def _find(name: str, features: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The features that fit a column, and those of its group."""
    group, _, path = name.partition("/")
    start = STARTS.get(group)
    known = [f for f in features if (f.startswith(start) if start else not f.startswith((*STARTS.values(),)))]
    if start is None:
        return [f for f in known if _ends_in(f, path or group)], known
    if not path and start in features:  # Beside ``action`` there may be an ``action.joints``.
        return [start], known
    return [f for f in known if not path or _ends_in(f, path)], known


def _ends_in(feature: str, path: str) -> bool:
    return f"/{feature.replace('.', '/')}".endswith(f"/{path}")


def _describe(column: Column, found: list[str], known: list[str], place: str) -> str:
    group, _, path = column.name.partition("/")
    if group == "reward":
        return f"{place}: expected a feature '{REWARD}', found none; docs/demonstrations.md says how to add rewards"
    if found:
        expected = (
            f"one feature that ends in '.{path.replace('/', '.')}'" if path else f"one feature '{STARTS[group]}…'"
        )
        hint = "" if path else "; an observation space of type Dict takes them by their names"
        return f"{place}: column '{column.name}': expected {expected}, found {', '.join(found)}{hint}"
    names = ", ".join(known) or "none"
    return f"{place}: column '{column.name}': expected a feature that ends in '.{path or group}', found {names}"


def is_picture(feature: Mapping[str, Any]) -> bool:
    """Whether a feature holds frames of videos or single pictures."""
    return feature["dtype"] in KINDS_OF_PICTURES


def picture_header(column: Column, feature: Mapping[str, Any]) -> ArrayHeader:
    """Dtype and shape, ``[1, *shape]``, of a feature of pictures, its channels arranged as the column has them.

    Datasets name the axis of channels in several ways, or name no axes. So the sizes say where the channels are; the
    names decide only if both the first and the last axis could be of channels, or neither.
    """
    first, second, last = map(int, feature["shape"])
    if (first in CHANNELS) != (last in CHANNELS):
        is_channels_first = first in CHANNELS
    else:
        is_channels_first = str(next(iter(feature.get("names") or ()), "")).lower() in NAMES_OF_CHANNELS
    height, width = (second, last) if is_channels_first else (first, second)
    return ArrayHeader(np.dtype(np.uint8), (1, *arranged_shape(height, width, column.shape)))
