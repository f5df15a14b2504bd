from __future__ import annotations

import io
import math
from pathlib import Path

import av
import numpy as np
import pytest

from common.data import Array
from common.errors import DatasetError
from learner.datasets.lerobot_pictures import Clip, VideoFiles, decode_clip, decode_pictures
from tests.learner.datasets.robots import FPS, SIZE, make_episode, write_parquet, write_video

SHAPE = (3, SIZE, SIZE)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    write_video(tmp_path / "front.mp4", make_episode(0, 20)["obs/front"])
    return tmp_path / "front.mp4"


def assert_close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 3


def test_the_frames_of_an_episode_in_a_longer_video_are_found_by_their_time(video: Path) -> None:
    expected = make_episode(0, 20)["obs/front"]
    assert_close(decode_clip(Clip(video, 0.0), 21, FPS, SHAPE), expected)
    assert_close(decode_clip(Clip(video, 7 / FPS), 5, FPS, SHAPE), expected[7:12])


def test_frames_take_the_order_of_the_columns_shape(video: Path) -> None:
    expected = make_episode(0, 20)["obs/front"]
    assert_close(decode_clip(Clip(video, 0.0), 4, FPS, (SIZE, SIZE, 3)), np.moveaxis(expected[:4], 1, -1))
    assert decode_clip(Clip(video, 0.0), 2, FPS, (1, SIZE, SIZE)).shape == (2, 1, SIZE, SIZE)
    assert decode_clip(Clip(video, 0.0), 2, FPS, (SIZE, SIZE)).shape == (2, SIZE, SIZE)


def test_a_video_that_is_too_short_or_of_another_size_or_none_is_named(video: Path) -> None:
    with pytest.raises(DatasetError, match=r"front.mp4: expected 9 frames from 0.750 s on at 20 a second, found 6"):
        decode_clip(Clip(video, 15 / FPS), 9, FPS, SHAPE)
    with pytest.raises(DatasetError, match=r"front.mp4: expected pictures \[3, 8, 8\], found \[3, 16, 16\]"):
        decode_clip(Clip(video, 0.0), 2, FPS, (3, 8, 8))
    video.write_bytes(b"not at all")
    with pytest.raises(DatasetError, match=r"front.mp4: expected a video or picture, which cannot be read"):
        decode_clip(Clip(video, 0.0), 2, FPS, SHAPE)


def test_a_playlist_in_the_place_of_a_video_opens_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other.ts"
    write_video(other, make_episode(0, 20)["obs/front"])
    lines = ("#EXTM3U", "#EXT-X-TARGETDURATION:2", "#EXTINF:2.0,", f"{other}", "#EXT-X-ENDLIST")
    playlist = tmp_path / "front.m3u8"
    playlist.write_text("\n".join(lines))
    with pytest.raises(DatasetError, match=r"front.m3u8: expected a video or picture, which cannot be read"):
        decode_clip(Clip(playlist, 0.0), 2, FPS, SHAPE)


def test_a_list_of_files_in_the_place_of_a_picture_opens_no_file(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(video.parent)
    cell = {"bytes": f"ffconcat version 1.0\nfile {video.name}\n".encode(), "path": None}
    with pytest.raises(DatasetError, match=r"file.parquet: expected a video or picture, which cannot be read"):
        decode_pictures([cell], SHAPE, tmp_path / "file.parquet")


def test_pictures_in_a_parquet_file_are_decoded(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(256, size=(SIZE, SIZE, 3), dtype=np.uint8)
    cell = {"bytes": encode_png(picture), "path": None}
    found = decode_pictures([cell, cell], SHAPE, tmp_path / "file.parquet")
    np.testing.assert_array_equal(found, np.moveaxis(np.stack([picture, picture]), -1, 1))
    with pytest.raises(DatasetError, match=r"file.parquet: expected the bytes of a picture, found None"):
        decode_pictures([None], SHAPE, tmp_path / "file.parquet")


def encode_png(picture: Array) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="image2pipe") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "value"), [("from_timestamp", math.nan), ("chunk_index", math.inf), ("file_index", "first")]
)
def test_a_place_of_a_video_that_is_no_number_is_named(tmp_path: Path, name: str, value: object) -> None:
    places = {f"videos/front/{part}": [0.0] for part in ("chunk_index", "file_index", "from_timestamp")}
    path = tmp_path / "meta" / "episodes" / "file-000.parquet"
    write_parquet(path, {"episode_index": [7], **places, f"videos/front/{name}": [value]})
    with pytest.raises(
        DatasetError, match=f"{path}: episode 7: expected a number in 'videos/front/{name}', found {value}"
    ):
        VideoFiles(tmp_path, {"video_path": "{video_key}.mp4", "chunks_size": 1000}, ["front"])
