"""Batches with a share from each of several replays: the rows of the actors, interventions, and datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from common.data import Array, Items, Snapshot
from common.errors import CheckpointError, PluginError
from common.interfaces import ReplayBuffer
from learner.replay.reader import ColumnT, NothingToDrawError
from learner.replay.shared_buffer import SharedReplay, read_size

SOURCE: Final = "source"
"""The column of a batch that says where each draw comes from, ``[n]`` uint8; 0: from the actors."""
SHIFT: Final = 48
"""A batch's ``index`` has the number of the replay above this many bits, and the row's index in its replay below."""
BatchT = TypeVar("BatchT")


@dataclass(frozen=True)
class Source:
    """A source of draws beside the rows of the actors: a dataset, interventions of the actors' rows, or both.

    Args:
        share: of each batch.
        dataset: draws from the rows of a dataset.
        interventions: draws from those rows of the actors in which somebody intervened; there may be none yet.
    """

    share: float
    dataset: SharedReplay | None = None
    interventions: SharedReplay | None = None

    @property
    def replays(self) -> dict[str, SharedReplay]:
        """Its replays: that of the dataset, and that of the interventions."""
        named = {"dataset": self.dataset, "interventions": self.interventions}
        return {name: replay for name, replay in named.items() if replay is not None}

    def split(self, size: int, rng: np.random.Generator) -> list[int]:
        """How many of ``size`` draws come from each of its replays, in proportion to their rows.

        Their sum is ``size``, or 0 if no replay has any rows.
        """
        rows = np.array([len(replay) for replay in self.replays.values()])
        if np.count_nonzero(rows) < 2:
            return [size if n else 0 for n in rows]
        edges = np.floor(np.cumsum(rows[:-1]) * (size / rows.sum()) + rng.random()).astype(np.int64)
        return [int(n) for n in np.diff([0, *edges, size])]


class MixedReplay(ReplayBuffer):
    """A ``ReplayBuffer`` over several replays, each of which gives a share of every batch.

    The first replay holds the rows of the actors: ``inserted`` and ``len`` count in this replay, ``sampled`` in all. A
    share that is not a whole number of draws is rounded up or down by chance, so it is right on average. The share of a
    source that has no rows yet falls to the rows of the actors.

    Args:
        own: draws from the rows of the actors.
        sources: all other replays, by name; they draw the same columns.
        seed: of the rounding.
    """

    def __init__(self, own: SharedReplay, sources: Mapping[str, Source], seed: int) -> None:
        self._sources = tuple(sources.values())
        others = {f"{name}.{kind}": part for name, each in sources.items() for kind, part in each.replays.items()}
        self._names = ["actors", *others]
        self.parts = (own, *others.values())
        """All replays, in the order in which a batch has their draws."""
        numbers = [i for i, source in enumerate(self._sources, 1) for _ in source.replays]
        self.numbers = np.array([0, *numbers], np.uint8)
        """The source of each of the replays."""
        interventions = {id(source.interventions) for source in self._sources}
        self._of_actors = [i for i, part in enumerate(self.parts) if i == 0 or id(part) in interventions]
        self._edges = 1.0 - np.cumsum([0.0, *(source.share for source in self._sources[::-1])])[:0:-1]
        self._rng = np.random.default_rng(seed)
        self._counts = [0] * len(self.parts)

    @property
    def inserted(self) -> int:
        return self.parts[0].inserted

    @property
    def sampled(self) -> int:
        return sum(part.sampled for part in self.parts)

    @property
    def waiting(self) -> int:
        """Steps of the actors that wait for their only draw; see ``SharedReplay``."""
        return self.parts[0].waiting

    @property
    def sampled_by_source(self) -> list[int]:
        """Steps drawn so far from each source, beginning with the actors' rows."""
        drawn = np.bincount(self.numbers, [part.sampled for part in self.parts])
        return [int(n) for n in drawn]

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def last_drawn(self) -> Array:
        """Of the last batch, the rows of the actors at which draws begin, ``[n]``; empty if not known."""
        drawn = [self.parts[i].last_drawn for i in self._of_actors if self._counts[i]]
        return np.concatenate(drawn) if drawn else np.empty(0, np.int64)

    def batch(self, size: int) -> Items:
        """Draw ``size`` times with replacement, the actors' rows first.

        Raises:
            NothingToDrawError: one of the replays has nothing to draw from.
            PluginError: the sources draw different columns; this can happen with a user's own buffer.
        """
        return self.join(size, lambda i, n: self.parts[i].batch(n), np.concatenate, lambda column: column)

    def join(
        self,
        size: int,
        draw: Callable[[int, int], Mapping[str, ColumnT]],
        concatenate: Callable[[list[ColumnT]], ColumnT],
        place: Callable[[Array], ColumnT],
    ) -> dict[str, ColumnT]:
        """Draw as ``batch`` does, into columns of another kind.

        Args:
            size: draws.
            draw: draws this many times from the replay of this number, and returns the batch.
            concatenate: puts columns one after another.
            place: makes such a column of an array.
        """
        counts, batches = self._draw_each(read_size(size), draw)
        if different := [sorted(each) for each in batches if each.keys() != batches[0].keys()]:
            raise PluginError(f"replay.sources: expected the columns {sorted(batches[0])}, found {different[0]}")
        batch = {name: concatenate([each[name] for each in batches]) for name in batches[0]}
        if "index" in batch:
            batch["index"] = batch["index"] | place(np.repeat(np.arange(len(counts)), counts) << SHIFT)
        return {**batch, SOURCE: place(np.repeat(self.numbers, counts))}

    def _draw_each(self, size: int, draw: Callable[[int, int], BatchT]) -> tuple[list[int], list[BatchT]]:
        """The number of draws from each replay, ``size`` in all, and the batches of those with any."""
        counts, batches = self.split(size), dict[int, BatchT]()
        for i in reversed(range(len(counts))):  # The rows of the actors come last: other shares may fall to them.
            if not counts[i]:
                continue
            try:
                batches[i] = draw(i, counts[i])
            except NothingToDrawError:  # Interventions raise it while no row follows the newest of them.
                if i == 0 or i not in self._of_actors:
                    raise
                counts[0], counts[i] = counts[0] + counts[i], 0
        self._counts = counts
        return counts, [batches[i] for i in sorted(batches)]

    def split(self, size: int) -> list[int]:
        """How many of ``size`` draws come from each replay."""
        edges = np.floor(self._edges * size + self._rng.random()).astype(np.int64)
        own, *shares = (int(n) for n in np.diff([0, *edges, size]))
        counts = [source.split(n, self._rng) for source, n in zip(self._sources, shares, strict=True)]
        others = [n for each in counts for n in each]
        return [own + sum(shares) - sum(others), *others]

    def update_priority(self, index: Array, td_error: Array) -> None:
        """Give draws the priorities of their errors, both ``[n]``, in the replays from which they came."""
        number, row = index >> SHIFT, index & ((1 << SHIFT) - 1)
        for i, part in enumerate(self.parts):
            if (mine := number == i).any():
                part.update_priority(row[mine], td_error[mine])

    def skip(self, n: int) -> None:
        """Count ``n`` steps as drawn although they were not."""
        self.parts[0].skip(n)

    def state(self) -> Snapshot:
        """The state on which later draws depend, except the rows."""
        states = [part.state() for part in self.parts]
        arrays = {f"{i}:{name}": array for i, state in enumerate(states) for name, array in state.arrays.items()}
        values = {name: dict(state.values) for name, state in zip(self._names, states, strict=True)}
        return Snapshot({"sources": values, "rng": self._rng.bit_generator.state}, arrays)

    def restore(self, state: Snapshot) -> None:
        """Draw from now on as the buffer that gave ``state`` would have drawn.

        Raises:
            CheckpointError: it is the state of another kind of buffer, or of a buffer with other sources.
        """
        values = state.values.get("sources", {"actors": state.values})  # Else it is the state of a single replay.
        found = list(values) if isinstance(values, dict) else f"{len(values)} replays without names"
        if found != self._names:
            raise CheckpointError(
                f"replay.sources: expected the states of {self._names}, found those of {found}; a resumed run keeps "
                "its sources and their order"
            )
        self._rng.bit_generator.state = state.values["rng"]
        for i, (name, part) in enumerate(zip(self._names, self.parts, strict=True)):
            begin = f"{i}:"
            arrays = {each.removeprefix(begin): a for each, a in state.arrays.items() if each.startswith(begin)}
            part.restore(Snapshot(values[name], arrays))
