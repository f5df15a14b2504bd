"""Environments that replay recordings, so that a figure is that of the system and not of an emulator.

See ``benchmarks.recordings`` for the files. This file imports nothing of crossborder: peers step the same environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = np.ndarray[Any, np.dtype[Any]]
Info = dict[str, Any]
PICTURE = Box(0, 255, (84, 84), np.uint8)
N_ACTIONS = {"pong": 6, "breakout": 4, "seaquest": 18, "qbert": 6, "noise": 6}


@cache
def recording(path: Path) -> dict[str, Array]:
    """The columns of a recording."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


class Recorded(gymnasium.Env[Array, Any]):
    """One environment that replays a recording from a place that depends on the seed; actions change nothing."""

    def __init__(self, directory: str, name: str) -> None:
        columns = recording(Path(directory) / f"{name}.npz")
        self._obs = list(columns["obs"])
        self._reward: list[float] = columns["reward"].tolist()
        self._terminated: list[bool] = columns["terminated"].tolist()
        self._truncated: list[bool] = columns["truncated"].tolist()
        self._at = -1
        self.observation_space, self.action_space = spaces(name)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:  # noqa: ARG002
        rows = len(self._obs)
        self._at = (self._at + 1 if seed is None else seed * 311) % rows
        if self._terminated[self._at] or self._truncated[self._at]:
            self._at = (self._at + 1) % rows
        return self._obs[self._at], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:  # noqa: ARG002
        i = self._at = self._at + 1
        return self._obs[i], self._reward[i], self._terminated[i], self._truncated[i], {}


class Episodes(gymnasium.Env[Any, Any]):
    """One robot that replays the episode files of a directory, again and again; actions change nothing."""

    def __init__(self, directory: str) -> None:
        self._episodes = [recording(path) for path in sorted(Path(directory).glob("*.npz"))]
        first = self._episodes[0]
        self._keys = [name for name in first if name.startswith("obs/")]
        self.observation_space = Dict({name.removeprefix("obs/"): _box(first[name]) for name in self._keys})
        self.action_space = _box(first["action"])
        self._episode, self._at = -1, 0

    def _observe(self) -> dict[str, Array]:
        columns = self._episodes[self._episode]
        return {name.removeprefix("obs/"): columns[name][self._at] for name in self._keys}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:  # noqa: ARG002
        self._episode, self._at = (self._episode + 1) % len(self._episodes), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:  # noqa: ARG002
        columns, self._at = self._episodes[self._episode], self._at + 1
        return self._observe(), float(columns["reward"][self._at - 1]), self._at == len(columns["reward"]), False, {}


def _box(column: Array) -> Box:
    """A space of the elements of a column."""
    if column.dtype == np.uint8:
        return Box(0, 255, column.shape[1:], np.uint8)
    return Box(-np.inf, np.inf, column.shape[1:], np.float32)


def spaces(name: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces of a recording."""
    if name == "cartpole":
        env = gymnasium.make("CartPole-v1")
        return env.observation_space, env.action_space
    return PICTURE, Discrete(N_ACTIONS[name])


class Replayed(VectorEnv[Array, Array, Array]):
    """Many lanes that replay arrays ``[rounds, lanes, …]`` over and over, batch-natively.

    A round after one with an end is the reset's (``AutoresetMode.NEXT_STEP``).
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, columns: Mapping[str, Array], obs: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self._columns, self._round = columns, 0
        self._rounds, self.num_envs = columns["obs"].shape[:2]
        self.single_observation_space, self.single_action_space = obs, action
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in (obs, action))

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Array, Info]:  # noqa: ARG002
        self._round = 0
        return self._columns["obs"][0], {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:  # noqa: ARG002
        i = self._round = (self._round + 1) % self._rounds
        columns = self._columns
        return columns["obs"][i], columns["reward"][i], columns["terminated"][i], columns["truncated"][i], {}


def lanes_of(directory: str, name: str, lanes: int) -> Replayed:
    """A recording cut into lanes of equal length; at the end of its part a lane is truncated and begins again."""
    columns = recording(Path(directory) / f"{name}.npz")
    rounds = len(columns["obs"]) // lanes
    cut = {
        key: np.ascontiguousarray(column[: rounds * lanes].reshape(lanes, rounds, *column.shape[1:]).swapaxes(0, 1))
        for key, column in columns.items()
    }
    cut["truncated"][-1] = ~cut["terminated"][-1]
    cut["truncated"][0] = cut["terminated"][0] = False
    return Replayed(cut, *spaces(name))


def physics(lanes: int, rounds: int = 64, episode: int = 1024) -> Replayed:
    """A simulator of robots: 98 floats observed, 29 given; episodes of ``episode`` steps end at different times.

    The recording is repeated until all lanes have had an end; observations are random and the same in each repetition.
    """
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rounds, lanes, 98), np.float32)
    at = np.arange(episode)[:, None] + rng.integers(episode, size=lanes)
    repeated = _Repeated(obs, episode)
    columns: dict[str, Any] = {
        "obs": repeated,
        "reward": rng.standard_normal((episode, lanes), np.float32),
        "terminated": at % episode == episode - 1,
        "truncated": np.zeros((episode, lanes), bool),
    }
    return Replayed(columns, Box(-np.inf, np.inf, (98,), np.float32), Box(-1, 1, (29,), np.float32))


class _Repeated:
    """The rounds of an array again and again, without a copy."""

    def __init__(self, array: Array, rounds: int) -> None:
        self._array, self.shape = array, (rounds, *array.shape[1:])

    def __getitem__(self, index: int) -> Any:
        return self._array[index % len(self._array)]
