"""Taking checkpoints while training goes on: the trainer copies its state, and a thread writes the copy.

The thread also syncs the files of the replay, so that after a power cut checkpoint and replay fit together.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

from common.errors import CheckpointError
from common.interfaces import Agent
from common.process.clocks import Deadline
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import Watermark
from learner.shared.durable import WITHOUT_CHECKPOINT, logging_write_errors
from learner.storage.resume import Resumable, Trained
from learner.storage.training_state import Moment, RunState, StateFiles

log = logging.getLogger(__name__)
WRITE_SECONDS: Final = 60.0
"""At the end of training, the trainer waits at most this long for the thread that writes."""
WINDOW: Final = "window"
"""The name of the part that collects losses until they are recorded."""


class Checkpointer:
    """Takes a checkpoint whenever one is due. The replay is never copied: it lies in files already.

    Training waits while the state is copied, not while the copy is written. One copy is written at a time; a checkpoint
    that becomes due during the writing is taken afterwards.

    Args:
        files: write the checkpoints.
        agent: learns.
        parts: all other parts with a state, by name.
        device: the agent learns on it.
        newest: the moment of the newest existing checkpoint; the next checkpoint needs a later opt step.
        seconds: between two checkpoints; None takes one only when training ends.
        replay: synced before each checkpoint is written.
        rows: a checkpoint is also due after this many new rows of the replay, and then training waits for the
            checkpoint that is being written. None does not count rows.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        files: StateFiles,
        agent: Trained,
        parts: Mapping[str, Resumable],
        device: str,
        *,
        newest: Moment,
        seconds: float | None,
        replay: ReplayMemory,
        rows: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._agent, self._parts, self._device = files, agent, parts, torch.device(device)
        self._newest, self._replay = newest, replay
        self._seconds, self._clock = math.inf if seconds is None else seconds, clock
        self._rows = math.inf if seconds is None or rows is None else rows
        self._newest_row = self._replay.committed
        self._written = newest.opt_steps
        """The opt step of the newest checkpoint that is on disk."""
        self._next = Deadline(self._seconds, clock)
        self._writing: threading.Thread | None = None
        if type(agent).training_state is Agent.training_state:
            log.info("%s has no training_state(): --resume restores its save_params() only", type(agent).__name__)

    def write_first(self) -> None:
        """Write a checkpoint of the moment at which a life of the run begins, and remove checkpoints of later moments.

        Even if a new run is killed very early, it can be resumed from this checkpoint. A rank other than 0 may have
        checkpoints of later opt steps than the opt step from which rank 0 goes on.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._files.write(self.copy(self._newest), self._sync_replay() if self._newest.opt_steps else None)
        self._files.remove_after(self._newest.opt_steps)

    def tick(self, moment: Moment) -> None:
        """Between two opt steps: take a checkpoint if one is due."""
        if self._replay.committed - self._newest_row >= self._rows:
            self._wait()
            self._take(moment)
        elif self._next.passed():
            self._take(moment)

    def finish(self, moment: Moment) -> bool:
        """Wait for the checkpoint that is being written, up to twice; then take the last one and wait for it too.

        Returns:
            Whether it is written; if not, the log says why.
        """
        for _ in range(2):
            self._wait()
            self._take(moment)
        if self._newest.opt_steps < moment.opt_steps:
            log.error("the last checkpoint, of opt step %d, is not taken", moment.opt_steps)
        else:
            self._wait()
        return self._written >= moment.opt_steps

    def _take(self, moment: Moment) -> None:
        is_writing = self._writing is not None and self._writing.is_alive()
        if moment.opt_steps > self._newest.opt_steps and not is_writing:
            self._newest, self._next = moment, Deadline(self._seconds, self._clock)
            self._newest_row = self._replay.committed
            state = self.copy(moment)
            self._writing = threading.Thread(target=self._write, args=(state,), name="checkpoint", daemon=True)
            self._writing.start()

    def copy(self, moment: Moment) -> RunState:
        """Copy the present state to the CPU; this copy is the only work of a checkpoint that training waits for."""
        parts = {name: part.state() for name, part in self._parts.items()}
        return RunState.take(moment, self._agent.training_state(), parts, self._device)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join(WRITE_SECONDS)
            if self._writing.is_alive():
                log.error("a checkpoint is not written after %g s", WRITE_SECONDS)

    def _write(self, state: RunState) -> None:
        """Write a checkpoint, in the thread. An error is counted and logged.

        Nothing is written if training has diverged, although no record may show it yet: a run that is resumed from
        this checkpoint would diverge again.
        """
        with logging_write_errors(WITHOUT_CHECKPOINT):
            with self._files.saves.saving(self._files.directory):
                _require_finite_losses(state)
                watermark = self._sync_replay()
            self._files.write(state, watermark)
            self._written = state.opt_steps

    def _sync_replay(self) -> Watermark:
        """Sync the replay and return its watermark. It is taken before the sync, so all rows below it are on disk."""
        watermark = Watermark.of(self._replay)
        self._replay.sync()
        return watermark


def _require_finite_losses(state: RunState) -> None:
    """Raise if a loss since the last record is not finite; ``StateFiles`` looks for NaN in tensors."""
    window = state.part(WINDOW)
    for name, value in (window.values["sums"] if window is not None else {}).items():
        if not math.isfinite(value):
            raise CheckpointError(f"opt step {state.opt_steps}: expected a finite loss, found {value} in {name}")
