"""Datasets in LeRobot's format, versions 2.1 and 3.0 (https://github.com/huggingface/lerobot).

A column of the run is taken from the feature whose name ends in the column's path: ``obs/front`` from
``observation.images.front``, ``obs/state`` from ``observation.state``, ``info/success`` from ``next.success``. Rewards
are ``next.reward``. An episode terminated if ``next.done`` is True and ``next.truncated`` is not; otherwise it was cut
off. LeRobot's own learner also reads ``next.done`` as a termination.

A frame of a LeRobot dataset has no observation after its action; ``make_rows`` says how it treats the last frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from common.data import Array, Items, Schema
from common.errors import DatasetError
from common.parts import Parts
from learner.datasets.episode_dataset import EpisodeDataset
from learner.datasets.episode_rows import check_arrays
from learner.datasets.lerobot_features import is_picture, match_features, picture_header, read_info
from learner.datasets.lerobot_pictures import VideoFiles, decode_clip, decode_pictures
from learner.datasets.parquet_episodes import Episode, StepTable, name_episode

DONE: Final = "next.done"
TRUNCATED: Final = "next.truncated"


class LeRobotEpisodes(EpisodeDataset):
    """The episodes of a LeRobot dataset.

    Args:
        name: as the user named the dataset.
        directory: of the dataset, with ``meta/info.json``.

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
