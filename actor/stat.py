"""What an actor process did (border's ActorStat)."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.data import MAX_ENV_ERROR, MAX_EPISODES

RECENT_EPISODES: Final = 100
"""Episodes whose means are shown."""


@dataclass(frozen=True)
class ActorStat:
    """Environment steps taken, and seconds from the first to the last."""

    actor_id: int
    env_steps: int
    duration: float


class ActorCounters:
    """Counts steps and episodes as they happen, over all environments of one actor.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: float | None = None
        self._last = 0.0
        self.env_steps = 0
        self.env_seconds = 0.0
        """Spent in environments and step processors."""
        self.inference_seconds = 0.0
        """Spent on choosing actions."""
        self.wait_seconds = 0.0
        """Held back with a finished batch."""
        self.reconnects = 0
        """Joins after the first."""
        self.dropped_items = 0
        """In batches that were dropped instead of sent."""
        self.env_rebuilds = 0
        """Environments that raised and were built anew."""
        self.env_hangs = 0
        """Environments that did not return."""
        self._env_errors: deque[str] = deque(maxlen=1)
        self._returns: deque[float] = deque(maxlen=MAX_EPISODES)
        self._lengths: deque[int] = deque(maxlen=MAX_EPISODES)
        self._successes: deque[bool] = deque(maxlen=MAX_EPISODES)
        self._open: dict[int, tuple[float, int]] = {}  # Return and length so far, by environment.
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._recent_successes: deque[bool] = deque(maxlen=RECENT_EPISODES)

    def step(self, env: int, reward: float, done: bool, success: bool | None = None) -> None:
        """Count one step of environment number ``env``; with ``done`` it ends that environment's episode.

        An episode with a reward that is not finite has no return and is not reported.

        Args:
            env: number of the environment.
            reward: of the step.
            done: whether the episode ends.
            success: whether the episode succeeded; None where the environment does not say.
        """
        self._last = self._clock()
        if self._started is None:
            self._started = self._last
        self.env_steps += 1
        total, length = self._open.get(env, (0.0, 0))
        total, length = total + reward, length + 1
        self._open[env] = (0.0, 0) if done else (total, length)
        if done and math.isfinite(total):
            self._returns.append(total)
            self._recent.append(total)
            self._lengths.append(length)
            self._recent_lengths.append(length)
            if success is not None:
                self._successes.append(success)
                self._recent_successes.append(success)

    def abandon(self, env: int) -> None:
        """Forget the episode of environment number ``env``: it has no end."""
        self._open.pop(env, None)

    def note_env_error(self, text: str) -> None:
        """Keep the end of a traceback until it is taken, or until there is a newer one; from any thread."""
        self._env_errors.append(text.encode(errors="replace").decode()[-MAX_ENV_ERROR:])

    def take_env_error(self) -> str:
        """What was noted since the last call; empty if nothing was."""
        try:
            return self._env_errors.pop()
        except IndexError:
            return ""

    def state(self) -> dict[str, Any]:
        """Counts of steps and episodes, as plain values."""
        return {
            "env_steps": self.env_steps,
            "recent": list(self._recent),
            "recent_lengths": list(self._recent_lengths),
            "recent_successes": list(self._recent_successes),
            "open": list(self._open.items()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting where ``state`` was."""
        self.env_steps = state["env_steps"]
        self._recent.extend(state["recent"])
        self._recent_lengths.extend(state.get("recent_lengths", []))  # Release 0.1 did not keep these two.
        self._recent_successes.extend(state.get("recent_successes", []))
        self._open = {env: (total, length) for env, (total, length) in state["open"]}

    def seconds(self) -> float:
        """From the first step to the last."""
        return 0.0 if self._started is None else self._last - self._started

    def return_mean(self) -> float:
        """Mean return of the last 100 episodes; 0 before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def episode_record(self) -> dict[str, float]:
        """Means of the last 100 episodes, by the keys of records; without those that no episode has told yet."""
        recent: dict[str, Sequence[float]] = {
            "train_return": self._recent,
            "train_length": self._recent_lengths,
            "train_success": self._recent_successes,
        }
        return {key: sum(values) / len(values) for key, values in recent.items() if values}

    def take_episodes(self) -> tuple[list[float], list[int], list[bool]]:
        """Returns, lengths and known successes of the episodes since the last call, the newest ``MAX_EPISODES``."""
        taken = list(self._returns), list(self._lengths), list(self._successes)
        for values in (self._returns, self._lengths, self._successes):
            values.clear()
        return taken
