from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.data import INTERVENED, Column
from common.errors import DatasetError, SchemaMismatchError
from common.interfaces import EnvSpec
from learner.datasets.lerobot_features import match_features, picture_header, read_info
from learner.datasets.lerobot_pictures import VideoFiles
from tests.learner.datasets.robots import SPEC, robot_parts

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
