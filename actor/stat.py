"""What an actor process did (border's ActorStat)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ActorStat:
    """Environment steps taken, and seconds from the first to the last."""

    actor_id: int
    env_steps: int
    duration: float


class ActorCounters:
    """Counts steps and episodes as they happen.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: float | None = None
        self.env_steps = 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._return, self._length = 0.0, 0

    def step(self, reward: float, done: bool) -> None:
        """Count one environment step."""
        if self._started is None:
            self._started = self._clock()
        self.env_steps += 1
        self._return += reward
        self._length += 1
        if done:
            self._returns.append(self._return)
            self._lengths.append(self._length)
            self._return, self._length = 0.0, 0

    def seconds(self) -> float:
        return 0.0 if self._started is None else self._clock() - self._started

    def take_episodes(self) -> tuple[list[float], list[int]]:
        """Returns and lengths of the episodes that ended since the last call."""
        taken = self._returns, self._lengths
        self._returns, self._lengths = [], []
        return taken
