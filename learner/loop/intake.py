"""The trainer's side of ingest: whether it may draw, what it tells of opt steps, and how it waits without spinning."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from common.errors import StarvedError
from common.interfaces import ReplayBuffer
from common.process.clocks import Stillness
from common.shared.mapped import fence
from learner.replay.ratio import LiveRatio
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock

WAIT_SECONDS = 0.25
"""The longest that one wait lasts; after it the trainer looks whether it has been asked to stop."""


class Intake:
    """The gate between the replay and the learner in training with actors.

    Args:
        buffer: counts steps that were inserted and drawn.
        ratio: the replay ratio and the warm-up.
        control: shared with ingest.
        bell: ingest rings it after it has stored rows, if the training process waits.
        release_held: makes ingest release the actors that it holds back, if enough has been drawn or the trainer waits.
        starvation_seconds: a wait raises an error after this time without a new step; None lets it wait forever.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        buffer: ReplayBuffer,
        ratio: LiveRatio,
        control: ControlBlock,
        bell: Bell,
        release_held: Callable[[], None],
        starvation_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer, self._ratio, self._control, self._bell = buffer, ratio, control, bell
        self._release_held = release_held
        self._starvation_seconds, self._clock = starvation_seconds, clock
        control.trainer_waits_for = control.batch_steps = 0  # A killed training process may have left other numbers.
        self._considered = buffer.inserted
        """The number of inserted steps at the last call of ``may_sample``."""
        self._drawn, self._batch = buffer.sampled, 0

    @cached_property
    def _stillness(self) -> Stillness:
        """How long no step has come, from the first wait on."""
        return Stillness(lambda: self._buffer.inserted, self._clock)

    def show_life(self) -> None:
        """Let ingest see that training goes on."""
        self._control.show_life()

    def may_sample(self) -> bool:
        """Whether the warm-up is over and the replay ratio allows another batch."""
        self._considered = self._buffer.inserted
        return self._ratio.limiter().may_sample(self._considered, self._buffer.sampled)

    def note_step(self, opt_steps: int) -> None:
        """Tell ingest of an opt step that was taken, the last of ``opt_steps``."""
        self._batch, self._drawn = self._buffer.sampled - self._drawn, self._buffer.sampled
        self._control.sampled, self._control.opt_steps = self._drawn, opt_steps
        self._release_held()

    def wait(self) -> None:
        """Wait until there are more steps than at the last call of ``may_sample``, at most ``WAIT_SECONDS``.

        Raises:
            StarvedError: no step has come for ``starvation_seconds``.
        """
        started = self._clock()
        self._watch_starvation()
        limiter = self._ratio.limiter()
        is_in_step = limiter.samples_per_insert is not None and limiter.error_buffer is None
        lacks_batch = is_in_step and limiter.may_sample(self._considered, self._drawn)  # A queue has too few rows.
        self._control.batch_steps = self._batch if lacks_batch else 0
        # Ingest rings the bell only if it sees the number after it has stored rows. So the number is set first and the
        # counter is read once more afterwards: either ingest sees the number, or the new steps are seen here.
        self._control.trainer_waits_for = self._considered + 1
        fence()
        self._release_held()  # The ratio may allow a draw for which there are not enough rows yet.
        if self._buffer.inserted == self._considered:
            self._bell.wait(WAIT_SECONDS)
        self._control.trainer_waits_for = 0
        self._control.trainer_wait_seconds += self._clock() - started

    def _watch_starvation(self) -> None:
        seconds = self._stillness.seconds()
        if self._starvation_seconds is not None and seconds > self._starvation_seconds:
            raise StarvedError(
                f"no step has arrived for {seconds:.0f} s (trainer.starvation_seconds "
                f"{self._starvation_seconds:g}); {self._control.actors_online} actors are online"
            )
