"""A person made of a script, and environments beside which people stand."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from common.data import Array
from crossborder.people.device import Command


class Script:
    """Gives the commands of a list, one a step, from the first one in each episode; then leaves all to the agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], commands: list[dict[str, Any]]) -> None:
        self.env, self.seen, self.closed = env, list[Any](), False
        self._commands, self._next = commands, 0

    def begin(self, obs: Any, info: Mapping[str, Any]) -> None:
        self._next = 0

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:
        self.seen.append((obs, dict(info)))
        self._next += 1
        return Command(**self._commands[self._next - 1]) if self._next <= len(self._commands) else Command()

    def close(self) -> None:
        self.closed = True


class Impatient(Script):
    """Presses Ctrl-C in the middle of the second episode."""

    episodes = 0

    def read(self, obs: Any, info: Mapping[str, Any]) -> Command:
        command = super().read(obs, info)
        self.episodes += self._next == 1
        if self.episodes == 2 and self._next == 2:
            signal.raise_signal(signal.SIGINT)
        return command


class Mute:
    """No device."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Take the environment."""


class Slide(gymnasium.Env[Array, Array]):
    """A point on a line or in space that moves by the action; nothing ends an episode, and each step pays 0.5."""

    def __init__(self, n: int = 1, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (n,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2, 2, (n,), np.float32)
        self.render_mode, self.at, self.closed = render_mode, np.zeros(n, np.float32), False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = np.zeros_like(self.at)
        return self.at, {"begun": True}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.at = self.at + action
        return self.at, 0.5, False, False, {}

    def render(self) -> Any:
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[:, :, 1] = 255
        return picture

    def close(self) -> None:
        self.closed = True
