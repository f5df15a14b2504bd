"""Writes what was played as a Minari dataset, as ``minari.DataCollector`` would (which needs jax)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import minari  # type: ignore[import-untyped]
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer  # type: ignore[import-untyped]

from common.data import Array
from common.interfaces import Step

Space = gymnasium.Space[Any]
SOURCE = "minari:tests/played-v0"


def same(obs: Array) -> Any:
    return obs


def record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    episodes: Sequence[Sequence[Step]],
    spaces: tuple[Space, Space],
    recorded: Callable[[Array], Any] = same,
) -> str:
    """Write episodes as the dataset ``SOURCE`` into a storage of the test's own.

    Args:
        tmp_path: of the test; the dataset's directory is ``tests/played-v0`` in it.
        monkeypatch: points Minari there.
        episodes: their steps.
        spaces: observation and action space of the dataset.
        recorded: the observation that is recorded for one that was played.
    """
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Nobody is named as its author, and the like.
        minari.create_dataset_from_buffers(
            SOURCE.removeprefix("minari:"),
            [_buffer(episode, recorded) for episode in episodes],
            observation_space=spaces[0],
            action_space=spaces[1],
        )
    return SOURCE


def _buffer(episode: Sequence[Step], recorded: Callable[[Any], Any]) -> Any:
    seen = [recorded(obs) for obs in [*(step.obs for step in episode), episode[-1].next_obs]]
    observations = {key: [obs[key] for obs in seen] for key in seen[0]} if isinstance(seen[0], dict) else seen
    return EpisodeBuffer(
        id=None,
        observations=observations,
        actions=[step.action for step in episode],
        rewards=[step.reward for step in episode],
        terminations=np.array([step.terminated for step in episode]),
        truncations=np.array([step.truncated for step in episode]),
        infos={},
    )
