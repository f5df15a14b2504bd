"""Recordings of environments, which benchmarks replay: so a figure is that of the system and not of an emulator.

    python -m benchmarks.recordings DIRECTORY        CartPole, noise, and Atari games (``ale_py``)

A recording is one ``.npz`` file of rows in the order of time: ``obs [n, *shape]``, the ``action`` taken there, and the
``reward``, ``terminated`` and ``truncated`` of the step that led *to* the row, so that a row
with either is the last observation of an episode and the next row is the first of another one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

from common.data import Array

STEPS = 20_000
GAMES = ("Pong", "Breakout", "Seaquest", "Qbert")
Policy = Callable[[Array], int]
Row = tuple[Array, int, float, bool, bool]


def record(env: gymnasium.Env[Any, Any], policy: Policy, steps: int) -> Iterator[Row]:
    """The rows of this many steps."""
    obs, _ = env.reset(seed=0)
    reward, terminated, truncated = 0.0, False, False
    for _ in range(steps):
        if terminated or truncated:
            yield obs, 0, reward, terminated, truncated
            obs, _ = env.reset()
            reward, terminated, truncated = 0.0, False, False
        action = policy(obs)
        yield obs, action, reward, terminated, truncated
        obs, given, terminated, truncated, _ = env.step(action)
        reward = float(given)
    yield obs, 0, reward, terminated, True


def save(path: Path, rows: Iterator[Row]) -> None:
    """Write a recording; ``path`` does not exist before the file is complete."""
    names = ("obs", "action", "reward", "terminated", "truncated")
    columns: dict[str, Any] = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    columns["reward"] = columns["reward"].astype(np.float32)
    part = path.with_name(f"{path.stem}.part.npz")
    np.savez(part, **columns)
    part.rename(path)


def cartpole(path: Path) -> None:
    """CartPole, balanced fairly well: nine actions of ten against the pole's fall, the tenth at random."""
    rng = np.random.default_rng(0)

    def policy(obs: Array) -> int:
        return int(rng.integers(2)) if rng.random() < 0.1 else int(obs[2] + obs[3] > 0)

    save(path, record(gymnasium.make("CartPole-v1"), policy, STEPS))


def atari(game: str, path: Path) -> None:
    """Single frames of a game, ``[84, 84]`` bytes: each random action is repeated one to eight times."""
    import ale_py  # noqa: PLC0415 - of an extra

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0))
    rng, action, left = np.random.default_rng(0), 0, 0
    n_actions = int(env.action_space.n)  # type: ignore[attr-defined] # a Discrete space

    def policy(_: Array) -> int:
        nonlocal action, left
        if not left:
            action, left = int(rng.integers(n_actions)), int(rng.integers(1, 9))
        left -= 1
        return action

    save(path, record(env, policy, STEPS))


def noise(path: Path) -> None:
    """Random pictures, ``[84, 84]`` bytes, which no compression makes smaller; episodes of 1,000 steps."""
    rng = np.random.default_rng(0)

    def rows() -> Iterator[Row]:
        for i in range(STEPS):
            picture = rng.integers(256, size=(84, 84), dtype=np.uint8)
            yield picture, int(rng.integers(6)), 0.0, False, i % 1000 == 999

    save(path, rows())


def ensure(directory: Path) -> None:
    """Make the recordings that are not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "cartpole.npz").exists():
        cartpole(directory / "cartpole.npz")
    if not (directory / "noise.npz").exists():
        noise(directory / "noise.npz")
    for game in GAMES:
        path = directory / f"{game.lower()}.npz"
        if not path.exists():
            sys.stderr.write(f"recording {STEPS} steps of {game}\n")
            atari(game, path)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.recordings", description=__doc__)
    parser.add_argument("directory", type=Path)
    ensure(parser.parse_args().directory)


if __name__ == "__main__":
    main()
