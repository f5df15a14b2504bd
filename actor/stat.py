"""What an actor process did (border's ActorStat)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.data import MAX_EPISODES


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
        self._last = 0.0
        self.env_steps = 0
        self._returns: deque[float] = deque(maxlen=MAX_EPISODES)
        self._lengths: deque[int] = deque(maxlen=MAX_EPISODES)
        self._return, self._length = 0.0, 0
        self._recent: deque[float] = deque(maxlen=100)

    def step(self, reward: float, done: bool) -> None:
        """Count one environment step."""
        self._last = self._clock()
        if self._started is None:
            self._started = self._last
        self.env_steps += 1
        self._return += reward
        self._length += 1
        if done:
            self._returns.append(self._return)
            self._recent.append(self._return)
            self._lengths.append(self._length)
            self._return, self._length = 0.0, 0

    def seconds(self) -> float:
        """From the first step to the last."""
        return 0.0 if self._started is None else self._last - self._started

    def return_mean(self) -> float:
        """Mean return of the last 100 episodes; 0 before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def take_episodes(self) -> tuple[list[float], list[int]]:
        """Returns and lengths of the episodes that ended since the last call, the newest ``MAX_EPISODES``."""
        taken = list(self._returns), list(self._lengths)
        self._returns.clear()
        self._lengths.clear()
        return taken
