"""Environments that replay recordings, and an agent that does nothing: what is left to measure is the system.

See ``benchmarks.recordings`` for the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from common.interfaces import Agent, EnvSpec, ReplayBuffer

Array = np.ndarray[Any, np.dtype[Any]]
Info = dict[str, Any]
PICTURE = Box(0, 255, (84, 84), np.uint8)
N_ACTIONS = {"pong": 6, "breakout": 4, "seaquest": 18, "qbert": 6}


@cache
def recording(path: Path) -> dict[str, Array]:
    """The columns of a recording."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@cache
def stacked(path: Path, stack: int) -> list[Array]:
    """The observation of each row; with ``stack`` above 1 its last frames, the first of an episode repeated."""
    columns = recording(path)
    obs, ends = columns["obs"], columns["terminated"] | columns["truncated"]
    if stack == 1:
        return list(obs)
    found, began = [], 0
    for i in range(len(obs)):
        whole = i - stack + 1 >= began
        found.append(obs[i - stack + 1 : i + 1] if whole else obs[[max(began, i - k) for k in range(stack)][::-1]])
        began = i + 1 if ends[i] else began
    return found


class Recorded(gymnasium.Env[Array, Any]):
    """One environment that replays a recording from a place that depends on the seed; actions change nothing."""

    def __init__(self, directory: str, name: str, stack: int = 1) -> None:
        path = Path(directory) / f"{name}.npz"
        columns = recording(path)
        self._obs = stacked(path, stack)
        self._reward: list[float] = columns["reward"].tolist()
        self._terminated: list[bool] = columns["terminated"].tolist()
        self._truncated: list[bool] = columns["truncated"].tolist()
        self._at = -1
        self.observation_space, self.action_space = spaces(name, stack)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:  # noqa: ARG002
        rows = len(self._obs)
        self._at = (self._at + 1 if seed is None else seed * 311) % rows
        if self._terminated[self._at] or self._truncated[self._at]:
            self._at = (self._at + 1) % rows
        return self._obs[self._at], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:  # noqa: ARG002
        i = self._at = self._at + 1
        return self._obs[i], self._reward[i], self._terminated[i], self._truncated[i], {}


def spaces(name: str, stack: int) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces of what was recorded."""
    if name == "cartpole":
        env = gymnasium.make("CartPole-v1")
        return env.observation_space, env.action_space
    space = PICTURE if stack == 1 else Box(0, 255, (stack, *PICTURE.shape), np.uint8)
    return space, Discrete(N_ACTIONS[name])


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
    return Replayed(cut, *spaces(name, stack=1))


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
    return Replayed(columns, Floats.observation_space, Floats.action_space)


class _Repeated:
    """The rounds of an array again and again, without a copy."""

    def __init__(self, array: Array, rounds: int) -> None:
        self._array, self.shape = array, (rounds, *array.shape[1:])

    def __getitem__(self, index: int) -> Any:
        return self._array[index % len(self._array)]


class Floats(gymnasium.Env[Array, Any]):
    """One robot of ``physics``: 98 random floats observed, 29 given, episodes of 1,000 steps."""

    observation_space = Box(-np.inf, np.inf, (98,), np.float32)
    action_space = Box(-1, 1, (29,), np.float32)

    def __init__(self, rows: int = 8192) -> None:
        self._obs = list(np.random.default_rng(0).standard_normal((rows, 98), np.float32))
        self._at = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:  # noqa: ARG002
        self._at = self._at if seed is None else seed * 31
        return self._obs[self._at % len(self._obs)], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:  # noqa: ARG002
        self._at += 1
        return self._obs[self._at % len(self._obs)], 1.0, False, self._at % 1000 == 0, {}


class Spaces(gymnasium.Env[Any, Any]):
    """Only the spaces of a task, to see how large its steps are; it is never stepped."""

    def __init__(self, task: str) -> None:
        camera, state = Box(0, 255, (3, 64, 64), np.uint8), Box(-np.inf, np.inf, (7,), np.float32)
        known: dict[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]] = {
            "camera and state": (Dict({"camera": camera, "state": state}), Box(-1, 1, (7,), np.float32)),
            "HalfCheetah": (Box(-np.inf, np.inf, (17,), np.float64), Box(-1, 1, (6,), np.float32)),
            "98 floats": (Box(-np.inf, np.inf, (98,), np.float32), Box(-1, 1, (29,), np.float32)),
        }
        self.observation_space, self.action_space = known[task]


class Idle(Agent):
    """Gives actions that were drawn beforehand, and never learns."""

    def __init__(self, spec: EnvSpec, seed: int, epsilon: float, device: str) -> None:
        del epsilon, device
        self._space, self._actions = spec.action_space, np.empty(0)
        self._space.seed(seed)
        self._weight = torch.zeros(1)

    def sample(self, obs: Any) -> Array:
        if len(self._actions) != len(obs):
            self._actions = np.array([self._space.sample() for _ in range(len(obs))])
        return self._actions

    def opt(self, buffer: ReplayBuffer) -> None:  # noqa: ARG002
        return None

    def model_info(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight}

    def sync_model(self, model: Any) -> None:
        """Every model is the same."""

    def save_params(self) -> dict[str, torch.Tensor]:
        return self.model_info()

    def load_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """There is nothing to load."""
