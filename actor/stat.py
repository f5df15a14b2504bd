"""Counts the work of an actor process: figures for its learner, and border's ActorStat."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np

from common.data import MAX_ENV_ERROR, MAX_EPISODES
from common.lanes.lanes import Round
from common.lanes.pace import LATE_SECONDS

RECENT_EPISODES: Final = 100
"""Means are taken over this many of the newest episodes."""
RECENT_TICKS: Final = 1000
"""The lateness is taken over this many of the newest ticks."""
_MOST_RETURN: Final = float(np.finfo(np.float32).max) / MAX_EPISODES
"""The returns of a report may have the sum of the largest float32."""
CLIENT_FIGURES: Final = ("env_seconds", "env_rebuilds", "env_hangs", "safe_stops")
"""The fields of ``ActorFigures`` that ``ClientReport`` has."""
MOST_OF_CLIENTS: Final = (1 << 32) - 1
"""The most of each of them over all reports of clients: a report to the learner has 32 bits for it."""


@dataclass(frozen=True)
class ActorStat:
    """Environment steps taken, and seconds from the first to the last."""

    actor_id: int
    env_steps: int
    duration: float


@dataclass(eq=False)
class ActorFigures:
    """The figures that an actor reports of itself.

    This class is the whole list: each field travels in the field of the same name of the protocol's ``Report``. All are
    totals since the actor began, except ``spool_bytes`` and ``lateness_p99_seconds``.
    """

    env_steps: int = 0
    """Environment steps taken."""
    seconds: float = 0.0
    """Seconds from the first environment step to the last."""
    env_seconds: float = 0.0
    """Seconds spent in environments and step processors."""
    inference_seconds: float = 0.0
    """Seconds spent on choosing actions."""
    wait_seconds: float = 0.0
    """Seconds for which the actor was held back with a finished batch."""
    spool_bytes: int = 0
    """Bytes that wait for an acknowledgement now."""
    reconnects: int = 0
    """Joins after the first."""
    dropped_items: int = 0
    """Items of batches that were dropped instead of sent."""
    env_rebuilds: int = 0
    """Environments that raised and were rebuilt."""
    env_hangs: int = 0
    """Environments that did not return."""
    ticks: int = 0
    """Steps that began at a tick of ``env.rate_hz``."""
    late_ticks: int = 0
    """Steps that began more than ``LATE_SECONDS`` after their tick."""
    missed_ticks: int = 0
    """Ticks without a step, because the previous step took too long."""
    lateness_p99_seconds: float = 0.0
    """The lateness that 99 of 100 steps did not exceed, in seconds, over the last ``RECENT_TICKS`` ticks."""
    safe_stops: int = 0
    """Safe stops after which the actor waited."""
    intervened_steps: int = 0
    """Environment steps in which a person or a safety layer acted for the agent (``env.intervention``)."""


_FIGURES: Final = tuple(field.name for field in fields(ActorFigures))
_figures_of = attrgetter(*_FIGURES)


class Episodes(NamedTuple):
    """Episodes that ended, the oldest first."""

    returns: MutableSequence[float]
    lengths: MutableSequence[int]
    """Environment steps."""
    successes: MutableSequence[bool]
    """Whether episodes succeeded, for those episodes whose environment says so."""

    @classmethod
    def newest(cls, size: int) -> Self:
        """No episodes yet; later the newest ones, of which each field has up to ``size``."""
        return cls(deque(maxlen=size), deque(maxlen=size), deque(maxlen=size))

    def add(self, total: float, length: int, success: bool | None) -> None:
        self.returns.append(total)
        self.lengths.append(length)
        if success is not None:
            self.successes.append(success)


class ActorCounters(ActorFigures):
    """Counts steps and episodes as they happen, over all environments of one actor.

    Several threads write, but each figure has one writer: the acting thread counts steps, seconds, rebuilds, ticks and
    safe stops, the pusher's thread counts reconnects, and the watchdog counts hangs. ``dropped_items`` is written under
    the spool's lock, ``spool_bytes`` and ``lateness_p99_seconds`` by the thread that makes a report. A report reads the
    figures without a lock: each is one number, and a report may be a step behind.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._started: float | None = None
        self._env_errors: deque[str] = deque(maxlen=1)
        self._unreported = Episodes.newest(MAX_EPISODES)
        self._recent = Episodes.newest(RECENT_EPISODES)
        self._lateness = np.zeros(RECENT_TICKS)
        self._games = Counter[tuple[int, int, int]]()

    def add_episodes(self, outcome: Round, version: int = 0) -> None:
        """Count the episodes that ended in a round, with the model of this version; it is needed for games only.

        A return that is not finite, or so large that a report has no room for many of them, is not reported.
        """
        for total, length, success in zip(outcome.returns, outcome.lengths, outcome.success, strict=True):
            if abs(total) <= _MOST_RETURN:  # No comparison with NaN is true.
                self._unreported.add(total, length, success)
                self._recent.add(total, length, success)
        for game in outcome.results:
            if game.opponent is not None:
                self._games[version, game.opponent, game.result] += 1

    def tick(self) -> None:
        """Note the time, before the first step and from time to time after steps."""
        now = self._clock()
        if self._started is None:
            self._started = now
        self.seconds = now - self._started

    def note_tick(self, lateness: float, missed: int) -> None:
        """Count a step that began this many seconds after its tick, and the ticks that were missed before it."""
        self._lateness[self.ticks % RECENT_TICKS] = lateness
        self.ticks += 1
        self.late_ticks += lateness > LATE_SECONDS
        self.missed_ticks += missed

    def figures(self) -> dict[str, Any]:
        """The figures of ``ActorFigures`` by name."""
        if self.ticks:
            self.lateness_p99_seconds = float(np.quantile(self._lateness[: self.ticks], 0.99))
        return dict(zip(_FIGURES, _figures_of(self), strict=True))

    def note_env_error(self, text: str) -> None:
        """Keep the end of a traceback until it is taken or a newer one replaces it.

        The acting thread and the watchdog may note a text while a report takes one. Noting and taking are each one
        atomic operation on a deque, so a text is taken once or replaced.
        """
        self._env_errors.append(text.encode(errors="replace").decode()[-MAX_ENV_ERROR:])

    def take_env_error(self) -> str:
        """The text that was noted since the last call; empty if none was."""
        try:
            return self._env_errors.pop()
        except IndexError:
            return ""

    def state(self) -> dict[str, Any]:
        """Counts of steps and episodes, as plain values."""
        return {
            "env_steps": self.env_steps,
            "intervened_steps": self.intervened_steps,
            "recent": list(self._recent.returns),
            "recent_lengths": list(self._recent.lengths),
            "recent_successes": list(self._recent.successes),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting from the counts that ``state`` returned."""
        self.env_steps, self.intervened_steps = state["env_steps"], state.get("intervened_steps", 0)
        self._recent.returns.extend(state["recent"])
        self._recent.lengths.extend(state["recent_lengths"])
        self._recent.successes.extend(state["recent_successes"])

    def episode_record(self) -> dict[str, float]:
        """Means of the last 100 episodes, by the keys of records; a key is missing until an episode has its value."""
        recent: dict[str, Sequence[float]] = {
            "train_return": self._recent.returns,
            "train_length": self._recent.lengths,
            "train_success": self._recent.successes,
        }
        return {key: sum(values) / len(values) for key, values in recent.items() if values}

    def take_games(self) -> Counter[tuple[int, int, int]]:
        """The number of games against the pool since the last call, by versions of both sides and the result."""
        games, self._games = self._games, Counter()
        return games

    def take_episodes(self) -> Episodes:
        """The episodes that ended since the last call, the newest ``MAX_EPISODES`` of them."""
        taken, self._unreported = self._unreported, Episodes.newest(MAX_EPISODES)
        return Episodes(list(taken.returns), list(taken.lengths), list(taken.successes))
