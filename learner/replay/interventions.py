"""Draws that begin at interventions (rows in which a person or a safety layer acted), and the share of these rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from common.config.replay_config import PrioritizedConfig
from common.data import INTERVENED, Array, Items
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.ring import read_ring
from learner.replay.shared_buffer import SharedReplay
from learner.replay.view import View

RECENT: Final = 1000
"""The share of interventions is computed over this many of the newest rows."""


def record_interventions(memory: ReplayMemory) -> dict[str, float]:
    """``train_intervened``, the share of the newest steps with an intervention; empty without the column or steps."""
    begin, end = max(memory.first(), memory.committed - RECENT), memory.committed
    if INTERVENED not in memory.schema.columns or not (steps := memory.count_steps(begin, end)):
        return {}
    flags = read_ring(memory.columns[INTERVENED.name], begin, end)
    return {"train_intervened": int(np.count_nonzero(flags)) / steps}


class IntervenedRows:
    """The rows of a replay whose column ``intervened`` is True, without overwritten rows.

    They depend only on the rows that the replay holds, so a resumed run finds the same rows again.

    Args:
        memory: read only here; its rows have the column.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self._memory = memory
        self._found: Array = np.empty(0, np.int64)
        self._end = 0

    def find(self, first: int, end: int) -> Array:
        """The absolute indices of these rows in ``[first, end)``, ascending, ``[n]`` int64.

        From call to call both bounds may only rise. The writer may overwrite rows while this method reads them. Those
        rows lie below the next ``first``.
        """
        begin = max(self._end, first, end - self._memory.n_slots)
        if end > begin:
            flags = read_ring(self._memory.columns[INTERVENED.name], begin, end)
            new = begin + np.flatnonzero(flags)
            self._found = np.concatenate([self._found, new]) if len(new) else self._found
            self._end = end
        self._found = self._found[np.searchsorted(self._found, first) :]
        return self._found

    def __len__(self) -> int:
        """The number of these rows now."""
        return len(self.find(self._memory.first(), self._memory.committed))


class UniformInterventions(SharedReplay):
    """A ``ReplayBuffer`` that begins draws at every intervened row of the actors with the same probability."""

    def __init__(self, memory: ReplayMemory, view: View, seed: int) -> None:
        super().__init__(memory, view, seed)
        self._rows = IntervenedRows(memory)

    def __len__(self) -> int:
        """Intervened rows."""
        return len(self._rows)

    def draw(self, size: int) -> tuple[Array, Items]:
        found = self._rows.find(self._reader.first, self._reader.end)
        if not len(found):
            raise NothingToDrawError
        return found[self._rng.integers(len(found), size=size)], {}


class PrioritizedInterventions(PrioritizedReplay):
    """A ``ReplayBuffer`` that begins draws at intervened rows of the actors, in proportion to their priorities.

    It keeps separate priorities: an error that is reported for one of its draws changes no priority of the same row in
    the replay of the actors.

    Arguments and errors are those of ``PrioritizedReplay``; the rows have the column ``intervened``.
    """

    def __init__(self, memory: ReplayMemory, view: View, config: PrioritizedConfig, seed: int, n_opts: int) -> None:
        super().__init__(memory, view, config, seed, n_opts)
        self._rows = IntervenedRows(memory)

    def __len__(self) -> int:
        """Intervened rows."""
        return len(self._rows)

    def find_new(self, since: int) -> Array:
        found = super().find_new(since)
        return found[self._reader.take(INTERVENED.name, found)]
