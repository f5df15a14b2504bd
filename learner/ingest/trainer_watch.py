"""Ingest watches the trainer: a training loop that hangs cannot log that it hangs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from common.process.clocks import Stillness
from learner.shared.control import ControlBlock

log = logging.getLogger(__name__)


class TrainerWatch:
    """Logs once when the training loop has stood still for too long, and once when it goes on.

    Nothing is killed: a long opt step, checkpoint or evaluation looks the same as a hang.

    The trainer is the only writer of ``trainer_beats``, and ingest only compares the count with that of its last look.
    So it does not matter when the trainer writes, and nothing is locked.

    Args:
        control: shared with the trainer.
        hung_seconds: a loop that stands still for this long is logged; None logs nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self, control: ControlBlock, hung_seconds: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._control, self._hung_seconds = control, hung_seconds
        self._stillness = Stillness(lambda: control.trainer_beats, clock)
        self._has_logged = False
        self.silent_seconds = 0.0
        """How long the training loop has stood still; 0 before it begins and after it has ended."""

    def look(self) -> None:
        """Compare the count with that of the last look; called a few times a second."""
        is_training = self._control.trainer_beats and not self._control.stopping
        seconds = self._stillness.seconds()
        self.silent_seconds = seconds if is_training else 0.0
        is_hung = self._hung_seconds is not None and self.silent_seconds > self._hung_seconds
        if is_hung and not self._has_logged:
            log.error(
                "the trainer has shown no sign of life for %.0f s (server.hung_seconds): it hangs, or one opt step, "
                "one checkpoint or one step of an evaluation takes that long",
                seconds,
            )
        elif self._has_logged and not is_hung:
            log.warning("the trainer goes on")
        self._has_logged = is_hung
