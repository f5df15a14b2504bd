"""Episodes whose pictures show a block that moves to a place, where the task is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.data import Array, Items
from common.episode_files import write_episode

SIDE = 24
STEPS = 12


def draw(at: float, random: np.random.Generator) -> Array:
    """A picture ``[3, SIDE, SIDE]`` with noise, a block at a share of the way, and the goal at its end."""
    picture = random.integers(60, 100, (3, SIDE, SIDE), np.uint8)
    top = int(random.integers(4, 12))
    left = int(at * (SIDE - 8))
    picture[1, top : top + 12, SIDE - 8 :] = 200
    picture[0, top : top + 8, left : left + 8] = 250
    return picture


def drawn_episode(seed: int, *, succeeds: bool, camera: str = "obs/camera") -> Items:
    """An episode whose block comes to the goal in its last three steps, or stops before."""
    random = np.random.default_rng(seed)
    ways = np.concatenate([np.linspace(0.0, 0.7, STEPS - 2), [1.0 if succeeds else 0.6] * 3])
    is_success = (ways == 1.0)[1:]
    return {
        camera: np.stack([draw(at, random) for at in ways]),
        "obs/joints": np.zeros((STEPS + 1, 2), np.float32),
        "action": np.zeros((STEPS, 2), np.float32),
        "reward": np.zeros(STEPS, np.float32),
        "terminated": np.arange(STEPS) == STEPS - 1,
        "truncated": np.zeros(STEPS, bool),
        "info/is_success": is_success,
    }


def write_drawings(directory: Path, n: int = 20) -> Iterator[Path]:
    """Write n episodes, every other one with success; yields their paths."""
    directory.mkdir(exist_ok=True)
    for seed in range(n):
        path = directory / f"{seed:03}.npz"
        write_episode(path, drawn_episode(seed, succeeds=seed % 2 == 0))
        yield path
