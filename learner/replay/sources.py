"""Batches of which shares come from several replays: the rows of the actors, and datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from common.data import Array, Items, Snapshot
from common.errors import CheckpointError, PluginError
from common.interfaces import ReplayBuffer
from learner.replay.shared_buffer import SharedReplay

SOURCE: Final = "source"
"""The column of a batch that says where each draw comes from, ``[n]`` uint8; 0: from the actors."""
SHIFT: Final = 48
"""A batch's ``index`` has the number of the source above this many bits, and the row's index in its replay below."""


class MixedReplay(ReplayBuffer):
    """A ``ReplayBuffer`` over several ones, each of which gives a share of every batch.

    The first one draws from the rows of the actors: ``inserted`` and ``len`` are its own, ``sampled`` is of all. A
    share that is no whole number of draws is rounded up or down by chance, so it is right on average.

    Args:
        own: draws from the rows of the actors.
        sources: the others, with their shares of a batch; they draw the same columns.
        seed: of the rounding.
    """

    def __init__(self, own: SharedReplay, sources: Sequence[tuple[SharedReplay, float]], seed: int) -> None:
        self.parts = (own, *(source for source, _ in sources))
        """By number of the source."""
        self._edges = 1.0 - np.cumsum([0.0, *(share for _, share in sources[::-1])])[:0:-1]
        self._rng = np.random.default_rng(seed)

    @property
    def inserted(self) -> int:
        """Steps of the actors accepted so far."""
        return self.parts[0].inserted

    @property
    def sampled(self) -> int:
        """Steps drawn so far, from all sources."""
        return sum(part.sampled for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def last_drawn(self) -> Array:
        """Of the last batch, the rows of the actors at which draws begin, ``[n]``; empty if not known."""
        return self.parts[0].last_drawn

    def batch(self, size: int) -> Items:
        """Draw ``size`` times with replacement, the actors' rows first.

        Raises:
            NothingToDrawError: one of the replays has nothing to draw from.
            PluginError: the sources draw other columns, as a buffer of a user's own may.
        """
        counts = self.split(size)
        batches = [part.batch(n) for part, n in zip(self.parts, counts, strict=True) if n]
        if different := [sorted(each) for each in batches if each.keys() != batches[0].keys()]:
            raise PluginError(f"replay.sources: expected the columns {sorted(batches[0])}, found {different[0]}")
        batch = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
        return _mark_sources(batch, counts)

    def split(self, size: int) -> list[int]:
        """How many of ``size`` draws come from each source."""
        edges = np.floor(self._edges * size + self._rng.random()).astype(np.int64)
        return [int(n) for n in np.diff([0, *edges, size])]

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws the priorities of their errors, both ``[n]``, in the replays from which they came."""
        source, row = index >> SHIFT, index & ((1 << SHIFT) - 1)
        for number, part in enumerate(self.parts):
            if (mine := source == number).any():
                part.update_priority(row[mine], td_error[mine])

    def skip(self, n: int) -> None:
        """Count ``n`` steps as drawn although they were not."""
        self.parts[0].skip(n)

    def state(self) -> Snapshot:
        """The state on which later draws depend, except the rows."""
        states = [part.state() for part in self.parts]
        arrays = {f"{i}:{name}": array for i, state in enumerate(states) for name, array in state.arrays.items()}
        values = [dict(state.values) for state in states]
        return Snapshot({"sources": values, "rng": self._rng.bit_generator.state}, arrays)

    def restore(self, state: Snapshot) -> None:
        """Draw from now on as the buffer that gave ``state`` would have drawn.

        Raises:
            CheckpointError: it is the state of another kind of buffer, or of one with other sources.
        """
        values = state.values.get("sources", [])
        if len(values) != len(self.parts):
            raise CheckpointError(
                f"replay.sources: expected the state of {len(self.parts) - 1} sources, found that of {len(values) - 1}"
            )
        self._rng.bit_generator.state = state.values["rng"]
        for i, part in enumerate(self.parts):
            begin = f"{i}:"
            arrays = {name.removeprefix(begin): a for name, a in state.arrays.items() if name.startswith(begin)}
            part.restore(Snapshot(values[i], arrays))


def _mark_sources(batch: Items, counts: Sequence[int]) -> Items:
    """The batch with the column ``source``, and with the source in ``index`` if there is one."""
    source = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)
    if "index" in batch:
        batch["index"] = batch["index"] | (source.astype(np.int64) << SHIFT)
    return {**batch, SOURCE: source}
