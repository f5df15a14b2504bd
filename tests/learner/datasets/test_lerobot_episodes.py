from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import INTERVENED, Column
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import EnvSpec
from learner.datasets.lerobot_episodes import match_features, picture_header, read_info
from learner.datasets.lerobot_pictures import VideoFiles
from tests.learner.datasets.robots import SPEC, make_episode, read_dataset, robot_parts, write_lerobot, write_parquet


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


NAMES = ("observation.images.front", "observation.state", "action", "next.reward", "next.success", "timestamp")
FEATURES: dict[str, Any] = {name: {} for name in NAMES}


def match(*extras: Column, other: dict[str, Any] | None = None, spec: EnvSpec = SPEC) -> dict[str, str]:
    return match_features(robot_parts(*extras, spec=spec).rows, FEATURES | (other or {}), "dataset demos")


def test_a_column_is_taken_from_the_feature_whose_name_ends_in_its_path() -> None:
    assert match(Column("info/success", "|b1"), INTERVENED) == {
        "obs/front": "observation.images.front",
        "obs/state": "observation.state",
        "action": "action",
        "reward": "next.reward",
        "info/success": "next.success",
    }


def test_a_plain_observation_is_the_only_one_of_the_dataset() -> None:
    plain = EnvSpec(SPEC.observation_space["state"], SPEC.action_space)  # type: ignore[index]
    only = {name: feature for name, feature in FEATURES.items() if "front" not in name}
    assert match_features(robot_parts(spec=plain).rows, only, "demos")["obs"] == "observation.state"
    with pytest.raises(SchemaMismatchError, match=r"column 'obs': expected one feature .*type Dict takes them"):
        match(spec=plain)


def test_a_feature_of_the_columns_own_name_comes_before_its_parts() -> None:
    assert match(other={"action.gripper": {}, "action_is_pad": {}, "next.reward_raw": {}}) == match()


def test_a_column_without_a_feature_and_one_with_two_are_named() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"dataset demos: column 'info/force': .*ends in '.force', found .*next"
    ):
        match(Column("info/force", "<f4"))
    with pytest.raises(SchemaMismatchError, match=r"column 'obs/front': expected one feature that ends in '.front'"):
        match(other={"observation.depth.front": {}})


def test_a_dataset_without_rewards_is_refused_with_a_place_to_read_on() -> None:
    only = {name: feature for name, feature in FEATURES.items() if name != "next.reward"}
    with pytest.raises(SchemaMismatchError, match=r"feature 'next.reward', found none; docs/demonstrations.md"):
        match_features(robot_parts().rows, only, "demos")


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ([3, 48, 64], ["channels", "height", "width"]),
        ([3, 48, 64], ["c", "h", "w"]),
        ([1, 48, 64], ["C", "H", "W"]),
        ([3, 48, 64], None),
        ([3, 48, 64], ["height", "width", "rgb"]),
        ([48, 64, 3], ["height", "width", "channels"]),
        ([48, 64, 3], ["channels", "height", "width"]),
        ([48, 64, 1], None),
        ([4, 48, 64], ["channel", "height", "width"]),
    ],
)
def test_pictures_take_the_order_of_their_column(shape: list[int], names: list[str] | None) -> None:
    feature = {"shape": shape, "names": names}
    assert picture_header(Column("obs/front", "|u1", (3, 9, 9)), feature).shape == (1, 3, 48, 64)
    assert picture_header(Column("obs/front", "|u1", (9, 9, 3)), feature).shape == (1, 48, 64, 3)
    assert picture_header(Column("obs/front", "|u1", (9, 9)), feature).shape == (1, 48, 64)


def test_the_names_of_axes_say_where_channels_are_if_the_sizes_do_not() -> None:
    column = Column("obs/front", "|u1", (9, 9))
    assert picture_header(column, {"shape": [3, 48, 1], "names": ["c", "h", "w"]}).shape == (1, 48, 1)
    assert picture_header(column, {"shape": [3, 48, 1], "names": ["h", "w", "c"]}).shape == (1, 3, 48)


def with_camera(shape: list[int], **other: Any) -> str:
    """What a dataset with a camera says of itself."""
    feature = {"dtype": "video", "shape": shape}
    return json.dumps({"codebase_version": "v3.0", "fps": 1, "features": {"observation.front": feature}, **other})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "found JSONDecodeError"),
        ('{"codebase_version": "v3.0"}', "found KeyError"),
        (json.dumps({"codebase_version": "v1.6", "fps": 1, "features": {}}), "of version 2 or 3, found v1.6"),
        (json.dumps({"codebase_version": "v3.0", "fps": "fast", "features": {}}), "found ValueError.*'fast'"),
        (json.dumps({"codebase_version": "v3.0", "fps": 1, "features": {"action": {}}}), "found KeyError.'dtype'"),
        (with_camera([16, 16]), "found ValueError.'not enough values"),
        (with_camera([16, 16, 3]), "found KeyError.'chunks_size'"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="{camera}.mp4"), "found KeyError.'camera'"),
        (with_camera([16, 16, 3], chunks_size=0, video_path="a.mp4"), "chunks_size: expected 1 or more, found 0"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="/etc/{file_index}"), "inside the directory"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="a/../../{file_index}"), "inside the directory"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="{video_key.__class__}"), "with parts such as"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="{file_index:0999999999d}"), "with parts such as"),
        (with_camera([16, 16, 3], chunks_size=1, video_path="{file_index!r}"), "with parts such as"),
    ],
)
def test_an_info_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "info.json").write_text(text)
    with pytest.raises(DatasetError, match=rf"info.json: expected a LeRobot dataset.*{message}"):
        read_info(tmp_path / "info.json")


def test_the_name_of_a_camera_does_not_lead_out_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").touch()
    files = VideoFiles(tmp_path / "demos", {"video_path": "{video_key}.mp4", "chunks_size": 1}, ["../secret"])
    with pytest.raises(DatasetError, match=r"video_path: expected a path inside the directory"):
        files.find(0, "../secret")
