"""The pictures of a LeRobot dataset: frames of its videos, and single pictures in its parquet files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import av
import numpy as np

from common.data import Array
from common.errors import DatasetError
from learner.datasets.parquet_episodes import StepTable

CHANNELS: Final = (1, 3)
_VIDEOS: Final = {"format_whitelist": "mov,matroska,avi"}
_PICTURES: Final = {"format_whitelist": "png_pipe,jpeg_pipe"}
"""Formats of files that hold their frames. Without these lists, FFmpeg reads playlists too, which name others."""
_PLACEHOLDER: Final = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")


def fill_template(template: str, **values: str | int) -> str:
    """The path, relative to the dataset's directory, that a path template of ``meta/info.json`` gives for these values.

    Whoever made the dataset wrote the template, so it is not used as a format string: it may hold ``{name}`` and
    ``{name:03d}``, and the path may not leave the directory.

    >>> fill_template("videos/{video_key}/file-{file_index:03d}.mp4", video_key="front", file_index=7)
    'videos/front/file-007.mp4'

    Raises:
        KeyError: there is no value of a name.
        ValueError: the template holds other braces, or the path leaves the directory.
    """
    if set("{}") & set(_PLACEHOLDER.sub("", template)):
        raise ValueError(f"expected a path with parts such as {{video_key}} and {{file_index:03d}}, found {template!r}")
    path = _PLACEHOLDER.sub(lambda part: str(values[part[1]]).zfill(int(part[2] or 0)), template)
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ValueError(f"expected a path inside the directory of the dataset, found {path!r}")
    return path


class Clip(NamedTuple):
    """Where the frames of an episode are: a video, and the time of the first frame in seconds."""

    path: Path
    begin: float


class VideoFiles:
    """Finds the video of an episode.

    In version 3.0 a video holds many episodes, and ``meta/episodes`` says where each begins. In version 2.1 a video
    holds one episode.

    Raises:
        DatasetError: a file of ``meta/episodes`` cannot be read, or lacks a camera.
    """

    def __init__(self, directory: Path, info: Mapping[str, Any], keys: list[str]) -> None:
        self._directory, self._template, self._chunk = directory, str(info["video_path"]), int(info["chunks_size"])
        self._places: dict[tuple[int, str], tuple[int, int, float]] | None = None
        if (directory / "meta" / "episodes").is_dir() and keys:
            self._places = {}
            for path in sorted((directory / "meta" / "episodes").rglob("*.parquet")):
                self._places |= _read_places(StepTable(path), keys)

    def find(self, episode: int, key: str) -> Clip:
        """The video with the frames of one camera.

        Raises:
            DatasetError: it is missing, or its path leaves the directory of the dataset.
        """
        if self._places is None:
            found = Clip(self._path(key, episode_chunk=episode // self._chunk, episode_index=episode), 0.0)
        elif (episode, key) not in self._places:
            raise DatasetError(
                f"{self._directory / 'meta' / 'episodes'}: expected a row of episode {episode}, found none"
            )
        else:
            chunk, file, begin = self._places[episode, key]
            found = Clip(self._path(key, chunk_index=chunk, file_index=file), begin)
        if not found.path.is_file():
            raise DatasetError(f"{found.path}: expected the frames of episode {episode}, found no such file")
        return found

    def _path(self, key: str, **numbers: int) -> Path:
        try:
            return self._directory / fill_template(self._template, video_key=key, **numbers)
        except (KeyError, ValueError) as error:
            raise DatasetError(f"{self._directory / 'meta' / 'info.json'}: video_path: {error}") from error


def _read_places(table: StepTable, keys: list[str]) -> dict[tuple[int, str], tuple[int, int, float]]:
    """By episode and camera the numbers of the video's directory and file, and the time of the first frame.

    Raises:
        DatasetError: a column is missing, or a place is no number.
    """
    names = {key: [f"videos/{key}/{part}" for part in ("chunk_index", "file_index", "from_timestamp")] for key in keys}
    lacking = [name for of_key in names.values() for name in of_key if name not in table.names]
    if lacking:
        raise DatasetError(f"{table.path}: expected a column '{lacking[0]}', found {', '.join(table.names)}")
    found = {}
    for episode, row in table.read(["episode_index", *(name for of_key in names.values() for name in of_key)]):
        for key, of_key in names.items():
            places = {name: table.array(row, name)[0] for name in of_key}
            for name, value in places.items():
                if not (isinstance(value, np.number) and np.isfinite(value)):
                    raise DatasetError(
                        f"{table.path}: episode {episode.number}: expected a number in '{name}', found {value}"
                    )
            chunk, file, begin = places.values()
            found[episode.number, key] = (int(chunk), int(file), float(begin))
    return found


def decode_clip(clip: Clip, count: int, fps: float, shape: tuple[int, ...]) -> Array:
    """The first ``count`` frames of an episode, ``[count, *shape]`` uint8.

    Args:
        clip: where they are.
        count: how many.
        fps: frames a second, of the dataset.
        shape: ``[3, H, W]``, ``[1, H, W]``, ``[H, W, 3]``, ``[H, W, 1]`` or ``[H, W]``.

    Raises:
        DatasetError: the video cannot be read, lacks a frame, or has frames of another size.
    """
    frames: list[Array] = []
    with _naming_the_file(clip.path), av.open(str(clip.path), options=_VIDEOS) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        assert stream.time_base is not None
        container.seek(int(clip.begin / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            index = round((frame.time - clip.begin) * fps)
            if index >= 0:
                if index != len(frames):
                    break
                frames.append(_arrange(frame, shape, clip.path))
            if len(frames) == count:
                return np.stack(frames)
    raise DatasetError(
        f"{clip.path}: expected {count} frames from {clip.begin:.3f} s on at {fps:g} a second, found {len(frames)}"
    )


def decode_pictures(cells: list[Any], shape: tuple[int, ...], path: Path) -> Array:
    """Pictures that a parquet file holds as the bytes of PNG or JPEG files, ``[count, *shape]`` uint8.

    Args:
        cells: ``{"bytes": …, "path": …}`` of each.
        shape: see ``decode_clip``.
        path: of the parquet file.

    Raises:
        DatasetError: a picture is missing or cannot be read.
    """
    found = []
    for cell in cells:
        if not cell or not cell.get("bytes"):
            raise DatasetError(f"{path}: expected the bytes of a picture, found {cell}")
        with _naming_the_file(path), av.open(io.BytesIO(cell["bytes"]), "r", options=_PICTURES) as container:
            found.append(_arrange(next(container.decode(video=0)), shape, path))
    return np.stack(found)


def arranged_shape(height: int, width: int, expected: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of pictures of this size, with the order and the number of channels of the ``expected`` shape."""
    match expected:
        case (channels, _, _) if channels in CHANNELS:
            return (channels, height, width)
        case (_, _, channels) if channels in CHANNELS:
            return (height, width, channels)
        case (_, _):
            return (height, width)
    return (height, width, 3)


def _arrange(frame: Any, shape: tuple[int, ...], path: Path) -> Array:
    """A frame as an array of this shape."""
    found = arranged_shape(frame.height, frame.width, shape)
    if found != shape:
        raise DatasetError(f"{path}: expected pictures {list(shape)}, found {list(found)}")
    is_gray = len(shape) == 2 or 1 in (shape[0], shape[-1])
    picture: Array = frame.to_ndarray(format="gray" if is_gray else "rgb24")
    return picture.reshape(shape) if is_gray else picture if shape[-1] == 3 else np.moveaxis(picture, -1, 0)


@contextmanager
def _naming_the_file(path: Path) -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, OSError, StopIteration, IndexError) as error:
        raise DatasetError(f"{path}: expected a video or picture, which cannot be read: {error}") from error
