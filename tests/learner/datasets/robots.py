"""Episodes of a robot with a camera, as arrays and as files of several formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from gymnasium.spaces import Box, Dict

from common.data import Column, Items
from common.interfaces import Agent, EnvSpec
from common.parts import Parts, row_schema
from learner.datasets.opening import open_dataset

SIZE = 16
FPS = 20
SPEC = EnvSpec(
    Dict({"front": Box(0, 255, (3, SIZE, SIZE), np.uint8), "state": Box(-9, 9, (2,), np.float32)}),
    Box(-1, 1, (2,), np.float32),
)


def robot_parts(*extras: Column, spec: EnvSpec = SPEC) -> Parts:
    """The parts of a run with the robot, as far as a dataset asks for them."""
    rows = row_schema(spec)
    for extra in extras:
        rows = rows.plus(extra)
    return Parts(cast(Agent, None), rows, spec, spec, rows)


def make_episode(number: int, steps: int) -> Items:
    """An episode that terminates if its number is even; a picture is gray, and says its episode and step."""
    at = np.arange(steps + 1)
    gray = (40 * number + 10 * at).astype(np.uint8)
    return {
        "obs/front": np.broadcast_to(gray[:, None, None, None], (steps + 1, 3, SIZE, SIZE)).copy(),
        "obs/state": np.stack([at, np.full(steps + 1, number)], axis=1).astype(np.float32),
        "action": np.stack([at[:-1] / 10, -at[:-1] / 10], axis=1).astype(np.float32),
        "reward": (at[:-1] == steps - 1).astype(np.float32),
        "terminated": (at[:-1] == steps - 1) & (number % 2 == 0),
    }


def read_dataset(source: Path | str, parts: Parts | None = None) -> list[Items]:
    """The rows of each episode."""
    with open_dataset(str(source)) as dataset:
        found = [items for _, items in dataset.items(parts or robot_parts())]
        assert len(dataset) >= sum(len(items["reward"]) for items in found)
    return found


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    """A parquet file; arrays with dimensions become nested lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()}
    pq.write_table(pa.table(lists), path, **options)


def write_video(path: Path, pictures: Any) -> None:
    """Pictures ``[T, 3, SIZE, SIZE]`` as a video."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "5"})
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.moveaxis(picture, 0, -1)), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_lerobot(
    directory: Path, lengths: list[int], *, version: str = "v3.0", other: dict[str, Any] | None = None
) -> None:
    """A dataset as LeRobot writes it, with ``other`` columns for each frame.

    Version 2.1 has files for each episode, version 3.0 has one for all.
    """
    episodes = [make_episode(number, steps) for number, steps in enumerate(lengths)]
    tables = [_frames(number, episode, other or {}) for number, episode in enumerate(episodes)]
    features: dict[str, Any] = {
        "observation.images.front": {
            "dtype": "video",
            "shape": [SIZE, SIZE, 3],
            "names": ["height", "width", "channels"],
        },
        **{name: {"dtype": "float32", "shape": [1]} for name in tables[0]},
    }
    if version == "v2.1":
        video_path = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
        for number, (episode, table) in enumerate(zip(episodes, tables, strict=True)):
            write_parquet(directory / f"data/chunk-000/episode_{number:06d}.parquet", table)
            name = video_path.format(episode_chunk=0, video_key="observation.images.front", episode_index=number)
            write_video(directory / name, episode["obs/front"][:-1])
    else:
        video_path = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        write_parquet(directory / "data/chunk-000/file-000.parquet", joined)
        name = video_path.format(video_key="observation.images.front", chunk_index=0, file_index=0)
        write_video(directory / name, np.concatenate([episode["obs/front"][:-1] for episode in episodes]))
        write_parquet(directory / "meta/episodes/chunk-000/file-000.parquet", _places(lengths))
    info = {
        "codebase_version": version,
        "fps": FPS,
        "chunks_size": 1000,
        "video_path": video_path,
        "features": features,
    }
    (directory / "meta").mkdir(exist_ok=True)
    (directory / "meta/info.json").write_text(json.dumps(info))


def _frames(number: int, episode: Items, other: dict[str, Any]) -> dict[str, Any]:
    """The columns of one episode in a parquet file; a frame has no observation after its action."""
    steps = len(episode["reward"])
    return {
        "observation.state": episode["obs/state"][:-1],
        "action": episode["action"],
        "next.reward": episode["reward"],
        "next.done": episode["terminated"],
        "episode_index": np.full(steps, number),
        "frame_index": np.arange(steps),
        **{name: np.full(steps, value) for name, value in other.items()},
    }


def _places(lengths: list[int]) -> dict[str, Any]:
    """Where version 3.0 says that the frames of each episode are."""
    key = "videos/observation.images.front"
    begins = np.cumsum([0, *lengths[:-1]]) / FPS
    zeros = np.zeros(len(lengths), np.int64)
    return {
        "episode_index": np.arange(len(lengths)),
        f"{key}/chunk_index": zeros,
        f"{key}/file_index": zeros,
        f"{key}/from_timestamp": begins,
    }
