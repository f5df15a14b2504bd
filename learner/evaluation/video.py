"""Writes episodes as MP4 files: ``pip install 'crossborder[video]'``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import RecordVideo

from common.errors import PluginError, RunDirectoryError
from common.lanes.building import Env, build_env
from common.lanes.lanes import close_env
from common.lanes.vector_lanes import is_vector
from common.plugins.part_config import EnvConfig

RENDER_MODE = "rgb_array"


@contextmanager
def filming(config: EnvConfig, directory: Path, name: str) -> Iterator[Env]:
    """Build an environment whose episodes are written to ``{name}-episode-{i}.mp4``, one file for each.

    Args:
        config: of the environment, which gets ``render_mode: rgb_array`` beside its own params.
        directory: where the files go; it is made if it does not exist.
        name: the beginning of the file names.

    Raises:
        PluginError: the environment renders no pictures, or a package for videos is not installed.
        RunDirectoryError: the directory cannot be written.
    """
    env = _build_rendering(config)
    try:
        _check_picture(env, config.target)
        env = _record(env, directory, name)
        yield env
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


def _record(env: Env, directory: Path, name: str) -> Env:
    try:
        return RecordVideo(env, str(directory), episode_trigger=lambda _: True, name_prefix=name)
    except OSError as error:
        raise RunDirectoryError(f"{directory}: videos cannot be written: {error.strerror}") from error
