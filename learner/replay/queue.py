"""Draws each row once, in order, for agents that learn from the steps of their present policy."""

from __future__ import annotations

import logging
import threading

import numpy as np

from common.data import Array, Items, Snapshot
from common.errors import CheckpointError, ConfigError
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ColumnT, Draws, Gatherer, NothingToDrawError, find_arrivals
from learner.replay.shared_buffer import SharedReplay
from learner.replay.view import View

log = logging.getLogger(__name__)


class QueueReplay(SharedReplay):
    """A ``ReplayBuffer`` over shared memory that begins a draw at each row once, in the order of arrival.

    It is for on-policy learning, where an importance weight such as V-trace (arXiv:1802.01561) corrects for the small
    change of the policy since a row was recorded. With sequences of L steps, set ``period: L`` too: then each step is
    drawn once. ``replay.samples_per_insert: 1`` makes actors wait for training; without it, rows that are overwritten
    before they are drawn are lost, and this class counts and logs them. The replay ratio counts after the warm-up. Rows
    that wait then stay ahead of all later rows and delay their draws: set a small ``trainer.warmup_period``.

    A batch is drawn when there are enough rows for all of it. Until then no row is taken, and actors do not wait.

    ``len`` looks for new rows, and the thread that reports progress calls it too. So a lock lets one thread at a time
    look at the rows or draw.
    """

    def __init__(self, memory: ReplayMemory, view: View, seed: int) -> None:
        super().__init__(memory, view, seed)
        self._alone = threading.RLock()
        self._ready: Array = np.empty(0, np.int64)
        """Rows at which draws can begin and have not begun, in the order in which this class found them, ``[n]``."""
        self._taken: Array = np.empty(0, np.int64)
        """Rows taken so far for the batch that is being made, ``[n]``; more than it has if some draws are spoilt."""
        self._end = 0
        self.lost = 0
        """Draws that were never made, because their rows were overwritten or excluded before."""
        self._logged = 0

    def __len__(self) -> int:
        with self._alone:
            try:
                self._reader.look()
            except NothingToDrawError:
                return 0
            self._catch_up()
            return len(self._ready) * self._view.steps

    @property
    def waiting(self) -> int:
        return max(0, min(len(self), self.inserted - self.sampled))  # ``len`` counts what fills sequences up too.

    def take_batch(self, size: int, rows: Gatherer[ColumnT]) -> dict[str, ColumnT]:
        with self._alone:
            return super().take_batch(size, rows)

    def make_draws(self, size: int) -> Draws:
        with self._alone:
            self._reader.look()
            index, beside = self.draw(size)
            return Draws(index, self._reader.plan(index), beside)

    def draw(self, size: int) -> tuple[Array, Items]:
        self._catch_up()
        if len(self._ready) < size:
            self._ready, self._taken = np.concatenate([self._taken, self._ready]), self._taken[:0]
            rows, most = size * self._view.steps, self._memory.capacity
            if self._view.crosses_episodes and not self._view.overlaps and rows > most <= self._reader.end:
                raise ConfigError(
                    f"replay.capacity: expected at least {rows} rows, for a batch of {size}, found {most}"
                )
            raise NothingToDrawError
        index, self._ready = self._ready[:size], self._ready[size:]
        self._taken = np.concatenate([self._taken, index])
        return index.copy(), {}

    def note_drawn(self, draws: Draws) -> None:
        with self._alone:
            super().note_drawn(draws)
            self._count_lost(len(self._taken) - len(draws.index))
            self._taken = self._taken[:0]

    def state(self) -> Snapshot:
        with self._alone:
            view = self._view.state()
            values = {**super().state().values, "end": self._end, "lost": self.lost, "view": view.values}
            return Snapshot(values, {"ready": self._ready, **{f"view.{name}": a for name, a in view.arrays.items()}})

    def restore(self, state: Snapshot) -> None:
        super().restore(state)
        try:
            self._end, self.lost = state.values["end"], state.values["lost"]
            self._ready = state.arrays["ready"].copy()
            # A power cut may have taken the newest rows; then other rows get their indices.
            self._end = min(self._end, self._memory.committed)
            of_view = {n.removeprefix("view."): a for n, a in state.arrays.items() if n.startswith("view.")}
            self._view.restore(Snapshot(state.values.get("view", {}), of_view), self._end)
        except KeyError as error:
            raise CheckpointError(f"replay.target: expected the state of a queue, found no {error} in it") from error
        self._ready = self._ready[self._ready < self._end]

    def _catch_up(self) -> None:
        """Add the rows at which draws can begin since the last call, and remove rows that have been overwritten."""
        able = self._reader.can_draw(self._ready) & (self._ready >= self._reader.first)
        self._count_lost(len(able) - int(able.sum()))
        arrived = find_arrivals(self._reader, self._end)
        self._ready = np.concatenate([self._ready[able], arrived])
        self._end = self._reader.end

    def _count_lost(self, n: int) -> None:
        self.lost += n
        if self.lost > 2 * self._logged:
            self._logged = self.lost
            log.warning("replay: %d draws were never made: their rows were overwritten or excluded first", self.lost)
