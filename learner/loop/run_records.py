"""The records of a run: the values of opt steps and evaluations, and the recorders and callbacks that take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from common.errors import DivergedError
from common.interfaces import Evaluation, Recorder
from learner.callbacks.calling import Callbacks
from learner.loop.window import RecordWindow
from learner.shared.durable import logging_write_errors
from learner.storage.training_state import Moment


class RunRecords:
    """Gives each record to recorders and callbacks, and ends training at a value that is not finite.

    Args:
        recorders: take the records.
        window: collects the values of opt steps between two records.
        callbacks: see evaluations and records, and may end training.
        episodes: means of the newest training episodes by key, for each record; None records none.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder],
        window: RecordWindow,
        callbacks: Callbacks | None = None,
        episodes: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self.window = window
        self._recorders, self._callbacks, self._episodes = recorders, callbacks or Callbacks(), episodes or dict
        self.newest: dict[str, float] = {}
        """The newest value of each key."""
        self.has_diverged = False
        """Whether a value was not finite."""

    @property
    def ends_run(self) -> bool:
        """Whether a callback has asked to end the run."""
        return self._callbacks.ended_because is not None

    def rates(self) -> dict[str, float]:
        """The rates since the last record, and the means of the newest episodes."""
        return self.window.rates() | self._episodes()

    def take_evaluation(self, opt_steps: int, evaluation: Evaluation) -> None:
        """Show an evaluation to the callbacks."""
        self._callbacks.on_evaluation(opt_steps, evaluation)

    def write(self, moment: Moment, record: Mapping[str, float]) -> None:
        """Write a record of this moment.

        Raises:
            DivergedError: a value is not finite; the recorders have taken it already.
        """
        samples = moment.samples_total + moment.samples_elsewhere
        record = {"seconds": moment.seconds, "samples_total": float(samples), **record}
        self.newest = {**self.newest, **record}
        for recorder in self._recorders:
            with logging_write_errors("training goes on without this record"):
                recorder.write(moment.opt_steps, record)
                recorder.flush()
        self._require_finite(moment.opt_steps, record)
        self._callbacks.on_record(moment.opt_steps, record)

    def finish(self) -> None:
        """Flush for the last time."""
        for recorder in self._recorders:
            with logging_write_errors("the last records are missing"):
                recorder.flush()

    def require_finite(self, opt_steps: int) -> None:
        """Check the values since the last record; at the end of training no record will show them.

        Raises:
            DivergedError: one of them is not finite.
        """
        self._require_finite(opt_steps, self.window.state().values["sums"])

    def _require_finite(self, opt_steps: int, values: Mapping[str, float]) -> None:
        bad = [f"{key} {value}" for key, value in values.items() if not math.isfinite(value)]
        if bad:
            self.has_diverged = True
            raise DivergedError(
                f"opt step {opt_steps}: expected finite values, found {', '.join(bad)}; "
                "--resume goes on from the checkpoint before"
            )
