from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from common.data import Column
from common.errors import DatasetError, SchemaMismatchError
from tests.learner.datasets.robots import make_episode, read_dataset, robot_parts, write_lerobot, write_parquet


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_its_frames_are_rows_of_the_run(tmp_path: Path, version: str) -> None:
    """The second episode has no end, so its last frame only gives an observation."""
    write_lerobot(tmp_path, [5, 4], version=version)
    terminated, cut_off = read_dataset(tmp_path)
    for number, rows in enumerate((terminated, cut_off)):
        episode = make_episode(number, 5 - number)
        steps = len(rows["reward"]) - 1
        expected = episode["obs/front"][:steps].astype(int)
        assert np.abs(rows["obs/front"][:-1].astype(int) - expected).max() <= 3, "a video is not exact"
        np.testing.assert_array_equal(rows["obs/state"][:-1], episode["obs/state"][:steps])
        np.testing.assert_array_equal(rows["action"][:-1], episode["action"][:steps])
    assert terminated["terminated"].tolist() == [False] * 4 + [True, False]
    assert terminated["reward"].tolist() == [0, 0, 0, 0, 1, 0]
    assert cut_off["truncated"].tolist() == [False, False, True, False]


def test_an_episode_that_was_truncated_did_not_terminate(tmp_path: Path) -> None:
    ends = {"next.done": [0.0, 1.0], "next.truncated": [False, True]}
    write_lerobot(tmp_path, [2], other={**ends, "complementary_info.force": 2.5})
    (rows,) = read_dataset(tmp_path, robot_parts(Column("info/force", "<f4")))
    assert not rows["terminated"].any()
    assert rows["info/force"].tolist() == [2.5, 2.5]


def test_a_video_that_is_missing_is_named_before_the_first_row(tmp_path: Path) -> None:
    write_lerobot(tmp_path, [3, 4], version="v2.1")
    path = tmp_path / "videos/chunk-000/observation.images.front/episode_000001.mp4"
    path.unlink()
    with pytest.raises(DatasetError, match=rf"{path}: expected the frames of episode 1, found no such file"):
        read_dataset(tmp_path)


def test_a_column_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    write_lerobot(tmp_path, [3])
    write_parquet(tmp_path / "data/chunk-000/file-000.parquet", {"episode_index": [0], "action": [[0.0, 0.0]]})
    with pytest.raises(DatasetError, match=r"file-000.parquet: expected a column 'observation.state'"):
        read_dataset(tmp_path)


def test_pictures_of_another_size_are_refused(tmp_path: Path) -> None:
    write_lerobot(tmp_path, [3])
    info = json.loads((tmp_path / "meta/info.json").read_text())
    info["features"]["observation.images.front"]["shape"] = [480, 640, 3]
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(
        SchemaMismatchError, match=r"uint8 \[3, 16, 16\] .* found uint8 \[3, 480, 640\]; .* not resized"
    ):
        read_dataset(tmp_path)
