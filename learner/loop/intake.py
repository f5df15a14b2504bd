"""The trainer's side of the intake: may it draw, and waiting for items without spinning."""

from __future__ import annotations

import time
from collections.abc import Callable

from common.errors import StarvedError
from common.interfaces import ReplayBuffer
from learner.replay.ratio import LiveRatio
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.mapped import fence

WAIT_SECONDS = 0.25
"""One wait; a stop request is seen after it at latest."""


class Intake:
    """Gate and waiting room between replay and learner.

    Args:
        buffer: counts items in and out.
        ratio: the replay ratio and the warm-up.
        control: shared with ingest.
        bell: ingest rings it after a commit.
        starvation_seconds: raise after so long without a new item while waiting; None never.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        buffer: ReplayBuffer,
        ratio: LiveRatio,
        control: ControlBlock,
        bell: Bell,
        starvation_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer, self._ratio, self._control, self._bell = buffer, ratio, control, bell
        self._starvation_seconds, self._clock = starvation_seconds, clock
        self._seen_items, self._seen_at = -1, clock()

    def may_sample(self) -> bool:
        """Whether warm-up is over and the replay ratio lets the trainer go on."""
        return self._ratio.limiter().may_sample(self._buffer.inserted, self._buffer.sampled)

    def wait(self) -> None:
        """Wait until items have come in since the last look, at most ``WAIT_SECONDS``.

        Raises:
            StarvedError: nothing has come for too long.
        """
        started, before = self._clock(), self._buffer.inserted
        self._watch_starvation(before, started)
        self._control.trainer_waits = 1
        fence()  # Ingest must see the flag before we look for the last time.
        if self._buffer.inserted == before:
            self._bell.wait(WAIT_SECONDS)
        self._control.trainer_waits = 0
        self._control.trainer_wait_seconds += self._clock() - started

    def _watch_starvation(self, items: int, now: float) -> None:
        if items != self._seen_items:
            self._seen_items, self._seen_at = items, now
        elif self._starvation_seconds is not None and now - self._seen_at > self._starvation_seconds:
            raise StarvedError(
                f"no item has arrived for {now - self._seen_at:.0f} s (trainer.starvation_seconds "
                f"{self._starvation_seconds:g}); {self._control.actors_online} actors are online"
            )
