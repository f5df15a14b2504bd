"""Writes episodes as MP4 files: ``pip install 'crossborder[video]'``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import RecordVideo

from common.errors import PluginError, RunDirectoryError
from common.lanes.building import Env, build_env
from common.lanes.lanes import close_env
from common.lanes.vector_lanes import is_vector
from common.plugins.part_config import EnvConfig

RENDER_MODE = "rgb_array"
DIMENSIONS = (2, 3)
"""The numbers of dimensions of a picture that can be filmed: ``[H, W]`` or ``[H, W, channels]``."""


class Filmable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Renders pictures that every player shows: in colours, with an even height and width."""

    def render(self) -> Any:
        return make_filmable(self.env.render())


def make_filmable(picture: Any) -> Any:
    """A picture ``[H, W]``, ``[H, W, 1]`` or ``[H, W, 3]`` in colours, its height and width even; else the value.

    A height or width that is odd grows by one: the last row or column is repeated. Films store colours for squares of
    four pixels, and many players refuse the format of films with odd sizes.
    """
    if not isinstance(picture, np.ndarray) or picture.ndim not in DIMENSIONS:
        return picture
    height, width, *_ = picture.shape
    colours = picture.reshape(height, width, -1)
    colours = np.repeat(colours, 3, axis=-1) if colours.shape[-1] == 1 else colours
    return np.pad(colours, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


class Films(RecordVideo):
    """Notices a film that was not written whole: the program that encodes it fails without a word."""

    recorded_frames: Any = ()  # Gymnasium 1.3 looks at it also where its constructor has failed.

    def stop_recording(self) -> None:
        from moviepy.video.io.ffmpeg_reader import ffmpeg_parse_infos  # noqa: PLC0415 - named if it is missing

        path, frames = Path(self.video_folder) / f"{self._video_name}.mp4", len(self.recorded_frames)
        try:
            super().stop_recording()  # type: ignore[no-untyped-call]
            if frames:
                ffmpeg_parse_infos(str(path))  # It reads the index, which comes last.
        except OSError as error:
            self.recording, self.recorded_frames = False, []
            free = f"{shutil.disk_usage(path.parent).free:,} bytes are free on its disk"
            raise RunDirectoryError(
                f"{path}: {frames} pictures could not be written as a film: {free}\n{error}"
            ) from error


@contextmanager
def filming(config: EnvConfig, directory: Path, name: str) -> Iterator[Env]:
    """Build an environment whose episodes are written to ``{name}-episode-{i}.mp4``, one file for each.

    Args:
        config: of the environment, which gets ``render_mode: rgb_array`` beside its own params.
        directory: where the files go; it is made if it does not exist.
        name: the beginning of the file names.

    Raises:
        PluginError: the environment renders no pictures, or a package for videos is not installed.
        RunDirectoryError: the directory or a film cannot be written.
    """
    env = _build_rendering(config)
    try:
        _check_picture(env, config.target)
        env = films = _record(env, directory, name)
        yield env
        if films.recording:
            films.stop_recording()  # Here, since an error of a close is only logged.
    except DependencyNotInstalled as error:
        raise PluginError(f"{error}; for videos: pip install 'crossborder[video]'") from error
    finally:
        close_env(env)


def _build_rendering(config: EnvConfig) -> Env:
    given = config.model_copy(update={"params": {**config.params, "render_mode": RENDER_MODE}})
    try:
        env = build_env(given)
    except PluginError as error:
        raise PluginError(f"a video needs an environment that takes render_mode '{RENDER_MODE}': {error}") from error
    if is_vector(env):
        raise PluginError(
            f"a video needs one environment, {config.target} is a vector environment; see env.eval_params"
        )
    found: Env = env
    return found


def _check_picture(env: Env, target: str) -> None:
    if env.render_mode != RENDER_MODE:
        raise PluginError(
            f"a video needs an environment of render_mode '{RENDER_MODE}', {target} is of {env.render_mode}"
        )
    env.reset(seed=0)
    picture = env.render()
    if not isinstance(picture, np.ndarray):
        raise PluginError(f"a video needs pictures as arrays, {target} renders {type(picture).__name__}")
    if picture.ndim not in DIMENSIONS:
        raise PluginError(
            f"a video needs pictures [H, W] or [H, W, channels], {target} renders arrays {list(picture.shape)}"
        )


def _record(env: Env, directory: Path, name: str) -> Films:
    try:
        return Films(Filmable(env), str(directory), episode_trigger=lambda _: True, name_prefix=name)
    except OSError as error:
        raise RunDirectoryError(f"{directory}: videos cannot be written: {error.strerror}") from error
