"""The base class of the replay buffers over shared memory."""

from __future__ import annotations

import abc

import numpy as np

from common.data import Array, Items, Snapshot
from common.interfaces import ReplayBuffer
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader


class SharedReplay(ReplayBuffer, abc.ABC):
    """A ``ReplayBuffer`` whose items another process stores, and whose state checkpoints keep.

    A buffer of your own derives from this class and chooses items in ``draw``. There ``_reader.bounds()`` gives the
    range of absolute indices that can be drawn. Draw random numbers from ``_rng``: then a resumed run draws the same
    items as a run that was never interrupted. If draws depend on anything else, override ``state`` and ``restore`` too.

    Args:
        memory: read only here.
        seed: of the draws.
    """

    def __init__(self, memory: ReplayMemory, seed: int) -> None:
        self._memory = memory
        self._reader = ReplayReader(memory)
        self._rng = np.random.default_rng(seed)
        self._sampled = 0
        self.last_drawn: Array = np.empty(0, np.int64)
        """Absolute indices of the batch that was given last, ``[n]``; empty where they are not known."""

    @property
    def inserted(self) -> int:
        """Items accepted so far."""
        return self._memory.committed

    @property
    def sampled(self) -> int:
        """Items drawn so far."""
        return self._sampled

    def __len__(self) -> int:
        return len(self._memory)

    def batch(self, size: int) -> Items:
        """Draw ``size`` items with replacement; the arrays are valid until the next call.

        Raises:
            IndexError: there is nothing to draw from.
        """
        more: set[str] = set()

        def draw(n: int) -> Items:
            index, beside = self.draw_allowed(n)
            more.update(beside)
            return {**beside, "index": index}

        drawn, items = self._reader.take(draw, size)
        self.note_drawn(drawn["index"])
        return {**items, **{name: drawn[name] for name in more}}

    @abc.abstractmethod
    def draw(self, size: int) -> tuple[Array, Items]:
        """Draw items without gathering their rows, for a caller that has them elsewhere; counts nothing.

        Returns:
            Absolute indices ``[size]`` int64, and the columns that a batch of them has beside the columns of items.

        Raises:
            IndexError: there is nothing to draw from.
        """

    def draw_allowed(self, size: int) -> tuple[Array, Items]:
        """As ``draw``, with others in the places of excluded items, which are never learnt from.

        Raises:
            IndexError: there is nothing to draw from.
        """
        index, beside = self.draw(size)
        if len(self._memory.excluded) and len(bad := np.flatnonzero(self._memory.is_excluded(index))):
            index[bad], columns = self.draw_allowed(len(bad))
            for name, column in columns.items():
                beside[name][bad] = column
        return index, beside

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give items ``[n]`` the priorities of their errors ``[n]``; by default, nothing changes."""

    def state(self) -> Snapshot:
        """The state on which later draws depend, except the items."""
        return Snapshot({"sampled": self._sampled, "rng": self._rng.bit_generator.state})

    def restore(self, state: Snapshot) -> None:
        """Draw from now on as the buffer that gave ``state`` would have drawn.

        Raises:
            CheckpointError: it is the state of another kind of buffer.
        """
        self._sampled = state.values["sampled"]
        self._rng.bit_generator.state = state.values["rng"]

    def note_drawn(self, index: Array) -> None:
        """Count the items of these absolute indices ``[n]`` as drawn, and remember them."""
        self._sampled += len(index)
        self.last_drawn = index

    def skip(self, n: int) -> None:
        """Count ``n`` items as drawn although they were not."""
        self._sampled += n
