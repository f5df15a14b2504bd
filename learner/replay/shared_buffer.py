"""The base class of the replay buffers over shared memory."""

from __future__ import annotations

import abc
from typing import Final

import numpy as np

from common.data import Array, Items, Snapshot
from common.errors import CheckpointError, PluginError
from common.interfaces import ReplayBuffer
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ColumnT, Draws, Gatherer, NothingToDrawError, ReplayReader
from learner.replay.view import View

ROUNDS: Final = 14
"""The most times that other rows are looked for, to replace rows at which no draw can begin."""
MAX_LOOK: Final = 1 << 13
"""The most rows that are looked at in one round."""


class BufferOver(ReplayBuffer):
    """Gives the draws of another buffer in another way; what a subclass does not change, the other buffer answers."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    @property
    def inserted(self) -> int:
        return self._buffer.inserted

    @property
    def sampled(self) -> int:
        return self._buffer.sampled

    def __len__(self) -> int:
        return len(self._buffer)

    def batch(self, size: int) -> Items:
        return self._buffer.batch(size)

    def update_priority(self, index: Array, td_error: Array) -> None:
        self._buffer.update_priority(index, td_error)


def read_size(size: object) -> int:
    """The number of draws that an agent asks for.

    Raises:
        PluginError: it is no whole number of at least 1.
    """
    number = int(size) if isinstance(size, int | np.integer) and not isinstance(size, bool) else 0
    if number < 1:
        raise PluginError(f"buffer.batch: expected a whole number of draws, 1 or more, found {size!r:.80}")
    return number


class SharedReplay(ReplayBuffer, abc.ABC):
    """A ``ReplayBuffer`` whose rows another process stores, and whose state checkpoints keep.

    Your own buffer derives from this class and chooses rows in ``draw``, with indices in ``[reader.first,
    reader.end)``. Draw random numbers from ``_rng``: then a resumed run draws the same rows as a run that was never
    interrupted. If draws depend on anything else, override ``state`` and ``restore`` too.
    """

    def __init__(self, memory: ReplayMemory, view: View, seed: int) -> None:
        self._memory, self._view = memory, view
        self._rng = np.random.default_rng(seed)
        self._reader = ReplayReader(memory, view, self._rng)
        self._sampled = 0
        self.last_drawn: Array = np.empty(0, np.int64)
        """Absolute indices of the rows at which the draws of the last batch begin, ``[n]``; empty if not known."""

    @property
    def reader(self) -> ReplayReader:
        """The rows, and the view that this buffer draws by."""
        return self._reader

    @property
    def inserted(self) -> int:
        return self._memory.steps

    @property
    def sampled(self) -> int:
        return self._sampled

    @property
    def waiting(self) -> int:
        """Steps that wait for their only draw; 0 if steps are drawn again and again.

        When the replay ratio begins to count, they count as inserted then. Otherwise they would stay ahead of all later
        steps.
        """
        return 0

    def __len__(self) -> int:
        return self._memory.drawable

    def batch(self, size: int) -> Items:
        return self.take_batch(read_size(size), self._reader)

    def take_batch(self, size: int, rows: Gatherer[ColumnT]) -> dict[str, ColumnT]:
        """Draw as ``batch`` does, into columns of the kind that ``rows`` gathers.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """
        draws, batch = rows.gather(self.make_draws, size)
        self.note_drawn(draws)
        return {**batch, **rows.place(self.finish(draws))}

    @abc.abstractmethod
    def draw(self, size: int) -> tuple[Array, Items]:
        """Propose rows at which draws begin. Rows of a later call replace those at which no draw can begin.

        Returns:
            Absolute indices ``[size]`` int64, and columns that belong to each draw, ``[size, …]``; a batch has them
            beside the columns of the view. The caller may change all arrays.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """

    def make_draws(self, size: int) -> Draws:
        """Choose ``size`` draws without gathering or counting them.

        Raises:
            NothingToDrawError: there is nothing to draw from.
        """
        self._reader.look()
        index, beside = self._draw_able(size)
        return Draws(index, self._reader.plan(index), beside)

    def _draw_able(self, size: int) -> tuple[Array, Items]:
        """Draw as ``draw`` does, but replace rows at which no draw can begin by other rows."""
        index, beside = self.draw(size)
        places = np.flatnonzero(~self._reader.can_draw(index))
        for n in range(ROUNDS):
            if not len(places):
                return index, beside
            # If few rows can be drawn, each round proposes more rows than the round before, and more than are needed.
            more, columns = self.draw(max(len(places), min(MAX_LOOK, len(places) << n)))
            good = self._rng.permutation(np.flatnonzero(self._reader.can_draw(more)))[: len(places)]
            filled, places = places[: len(good)], places[len(good) :]
            index[filled] = more[good]
            for name, column in columns.items():
                beside[name][filled] = column[good]
        if len(places):
            raise NothingToDrawError
        return index, beside

    def finish(self, draws: Draws) -> Items:
        """The columns that a batch has beside those of the view, once all draws are settled."""
        return draws.beside

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws that began at rows ``[n]`` the priorities of their errors ``[n]``; by default, nothing changes."""

    def state(self) -> Snapshot:
        """The state on which later draws depend, except the rows."""
        return Snapshot({"sampled": self._sampled, "rng": self._rng.bit_generator.state})

    def restore(self, state: Snapshot) -> None:
        """Draw from now on as the buffer that gave ``state`` would have drawn.

        Raises:
            CheckpointError: it is the state of another kind of buffer.
        """
        if "sources" in state.values:
            raise CheckpointError(
                "replay.sources: expected the state of a replay without sources, found one with sources; a resumed run "
                "keeps its sources"
            )
        self._sampled = state.values["sampled"]
        self._rng.bit_generator.state = state.values["rng"]

    def note_drawn(self, draws: Draws) -> None:
        """Count the steps of draws that a batch has, and remember the rows at which the draws begin."""
        self._sampled += self._view.count_steps(draws.plan.made, len(draws.index))
        self.last_drawn = draws.index

    def skip(self, n: int) -> None:
        """Count ``n`` steps as drawn although they were not drawn."""
        self._sampled += n
