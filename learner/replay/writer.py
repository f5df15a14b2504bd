"""The one process that stores batches in a replay: ingest, or a trainer that plays or copies rows itself.

``learner.replay.memory`` describes the order of a write, and the files after a kill between two of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from common.data import FINAL, FIRST, LANE, Array, Items
from common.errors import CrossborderError
from common.shared.mapped import fence
from learner.replay.batch_log import Batch
from learner.replay.linking import MAX_LANES, BatchLinks, LaneEnds
from learner.replay.memory import ReplayMemory
from learner.replay.ring import write_ring, write_rings
from learner.replay.value_rules import ValueRules


class CursorsFullError(CrossborderError):
    """There is no cursor for another actor process: all belong to processes that may still send a batch again."""


class _Sent(NamedTuple):
    """The values that came with the rows of a batch; see ``ReplayWriter.append``."""

    rows: int
    incarnation: int
    seq: int
    follows: bool


class ReplayWriter:
    """Stores batches. A new writer first finishes a batch that counts, if a kill came before its cursor was written.

    A batch that did not count yet needs nothing: its rows lie beyond ``committed``, and the next batch overwrites them.

    Args:
        memory: opened for writing.
        is_gone: whether the actor process of an incarnation will never send anything again. None: it is never known.
        is_present: whether the actor process of an incarnation holds an id now. None: it is never known.
        least_needed: which of some incarnations gives up its cursor when all cursors are needed; the incarnations hold
            no id, and the one that stored longest ago comes first. None: nobody gives one up.
    """

    def __init__(
        self,
        memory: ReplayMemory,
        is_gone: Callable[[int], bool] | None = None,
        is_present: Callable[[int], bool] | None = None,
        least_needed: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self._memory = memory
        self._header = memory.header
        self._is_gone, self._is_present = is_gone or (lambda _: False), is_present or (lambda _: False)
        self._least_needed = least_needed
        self._finish_last_batch()
        self._slots = {int(row["incarnation"]): i for i, row in enumerate(memory.cursors) if row["incarnation"]}
        self._look_at_links()
        self._files, self._first_pass_end = memory.open_columns(), memory.committed + memory.n_slots
        """Up to this row, the pages of a batch may be on the disk only, or nowhere: large columns go to their files. In
        the next pass the pages are there, and this process maps them; later passes only copy."""

    def last_seq(self, incarnation: int) -> int:
        """Highest seq of an incarnation that is stored; 0 for an unknown incarnation."""
        slot = self._slots.get(incarnation)
        return 0 if slot is None else int(self._memory.cursors["seq"][slot])

    def append(self, items: Items, rows: int, incarnation: int, seq: int, *, follows: bool = True) -> int:
        """Store a batch, its links and its cursor, all or none of them.

        Args:
            items: ``[rows, *shape]``; they must fit the schema.
            rows: 1 to the replay's capacity.
            incarnation: of the actor process that sent them.
            seq: of the batch; it must follow ``last_seq``.
            follows: False if the actor dropped rows before this batch: then no row continues an earlier one.

        Returns:
            How many episodes in the batch follow an episode without a final row.

        Raises:
            CursorsFullError: nothing was stored, see ``require_cursor``.
        """
        start, oldest = self._begin_batch(rows, incarnation)
        if self._memory.links is None:
            self._store(items, None, start, _Sent(rows, incarnation, seq, follows))
            return 0
        ends = self._use_ends(incarnation, follows=follows)
        n_lanes = len(ends)
        links, last = ends.link(items, start, oldest)
        if len(ends) > n_lanes:
            self._forget_lanes()
        self._store(items, links, start, _Sent(rows, incarnation, seq, follows))
        unfinished = ends.count_unfinished(items, links.previous)
        ends.note(last)
        return unfinished

    def copy(self, items: Items, previous: Array | None, batch: Batch) -> None:
        """Store a batch of another replay under the same absolute indices, with the same links.

        Args:
            items: ``[rows, *shape]``.
            previous: the links to earlier rows there, ``[rows]`` uint32; None for self-contained items.
            batch: its record there; number, steps and checksum do not matter.
        """
        start, oldest = self._begin_batch(batch.rows, batch.incarnation)
        links = BatchLinks.of(previous, items[FIRST.name], start, oldest) if previous is not None else None
        self._store(items, links, start, _Sent(batch.rows, batch.incarnation, batch.seq, bool(batch.follows)))

    def _begin_batch(self, rows: int, incarnation: int) -> tuple[int, int]:
        """Take a cursor, and give up the rows that the batch overwrites; return its start and the oldest row left.

        Trainer and ingest race here. A reader may be gathering those rows, so ``oldest`` is raised above them first.
        The reader looks at ``oldest`` after it has gathered, and redraws the rows below it.
        """
        memory, header = self._memory, self._header
        assert 1 <= rows <= memory.capacity, f"{rows} rows in a batch of 1 to {memory.capacity}"
        if incarnation not in self._slots:
            self._take_slot(incarnation)
        start, first = memory.committed, memory.first()
        end = start + rows
        oldest = max(first, end - memory.capacity)
        if oldest > first:
            header.drawable -= memory.count_drawable(first, oldest)
            header.oldest = oldest
        header.intact = max(header.intact, end - memory.n_slots)
        fence()
        return start, oldest

    def _store(self, items: Items, links: BatchLinks | None, start: int, sent: _Sent) -> None:
        memory, header = self._memory, self._header
        is_first_pass = start < self._first_pass_end
        if not is_first_pass and start < self._first_pass_end + memory.n_slots:
            memory.fault_in(start, sent.rows)
        columns = [items[name] for name in memory.columns]
        new_steps = steps = sent.rows
        if links is not None and memory.links is not None:
            columns.append(links.previous)
            write_ring(memory.links.next, links.next, start)
            new_steps, steps = links.new_steps, steps - int(np.count_nonzero(items[FINAL.name]))
        checksum = write_rings(memory.rings, columns, start, self._files if is_first_pass else ())
        number = int(header.batches)
        batch = Batch(
            number, start, sent.rows, memory.steps + steps, sent.incarnation, sent.seq, sent.follows, checksum
        )
        memory.log.write(batch)
        fence()
        # With this word the batch counts. If a kill comes earlier, the actor sends the batch again, and it is stored
        # in the same place. If a kill comes later, the next writer finishes the batch from its record.
        header.batches = number + 1
        if links is not None and memory.links is not None:
            memory.links.connect(links.before, links.offsets)
        self._finish(batch, self._slots[sent.incarnation], memory.drawable + new_steps)

    def _finish(self, batch: Batch, slot: int, drawable: int) -> None:
        """Write the cursor of a batch that counts, and let readers see its rows.

        ``committed`` comes last: a reader that sees it sees the rows, their links and the cursor too.
        """
        header = self._header
        self._memory.cursors[slot] = batch.incarnation, batch.seq, batch.end, 0
        header.steps, header.drawable = batch.steps_end, drawable
        fence()
        header.committed = batch.end

    def _finish_last_batch(self) -> None:
        memory, last = self._memory, self._memory.read_last_batch()
        if last is None or last.end <= memory.committed:
            return
        if memory.links is not None:
            memory.links.connect_batch(last.start, last.end)
        incarnations = memory.cursors["incarnation"]
        slots = *np.flatnonzero(incarnations == last.incarnation), *np.flatnonzero(incarnations == 0)
        self._finish(last, int(slots[0]), memory.drawable)  # There is a slot: it was freed before the batch was stored.

    def mark(self) -> dict[str, Any]:
        """Where the replay ends now, as plain values, for ``roll_back``."""
        memory = self._memory
        return {"oldest": memory.first(), "end": memory.committed, "steps": memory.steps}

    def roll_back(self, mark: Mapping[str, Any], incarnation: int) -> bool:
        """Forget the rows that this incarnation has stored since ``mark()``; the rows that counted then count again.

        No other process may be reading or writing. The rows are forgotten once ``batches`` is lowered. A kill before
        that undoes the roll-back: the last batch still counts, so ``learner.replay.recovery`` or the next writer takes
        cursor, ``committed`` and ``steps`` from its record again. So all of these are lowered first. Links to forgotten
        rows are cut last; if a kill prevents this, the next writer cuts them.

        Returns:
            False, and nothing is forgotten, if another incarnation has stored rows since, or there are fewer rows than
            at the mark, or rows that counted at the mark have been overwritten.
        """
        memory, header = self._memory, self._header
        oldest, end = mark["oldest"], mark["end"]
        others = memory.cursors["end"][memory.cursors["incarnation"] != incarnation].max(initial=0)
        is_whole = header.intact <= oldest or oldest == end
        if not (is_whole and others <= end <= memory.committed):
            return False
        number = memory.log.find_number(end, int(header.batches))
        own = memory.cursors["incarnation"] == incarnation
        memory.cursors["end"][own] = np.minimum(memory.cursors["end"][own], end)
        header.oldest = oldest
        header.committed = end
        header.steps = mark["steps"]
        header.batches = number
        header.intact = oldest
        memory.log.keep(0, number)
        memory.excluded = memory.excluded[memory.excluded < end]
        self._look_at_links()
        return True

    def _look_at_links(self) -> None:
        """Cut links to rows that do not count, count the steps that can be drawn, and find the last row of each lane.

        A kill may have left wrong links and a wrong count; this method corrects them.
        """
        memory, end = self._memory, self._memory.committed
        if memory.links is not None:
            memory.links.cut(int(self._header.intact), end)
        memory.recount()
        self._ends = self._find_ends() if memory.links is not None else {}

    def _find_ends(self) -> dict[int, LaneEnds]:
        """The last rows of all lanes of each actor process that has a cursor, as many as ``_forget_lanes`` keeps."""
        memory = self._memory
        assert memory.links is not None
        rows = memory.links.find_open(memory.first(), memory.committed)
        origins = memory.find_origins(rows)
        batches = memory.log.copy_newest(int(self._header.batches))
        dropped = batches[batches["follows"] == 0]
        since = dict(zip(dropped["incarnation"].tolist(), dropped["start"].tolist(), strict=True))
        by_origin = np.argsort(origins, kind="stable")
        senders, begins = np.unique(origins[by_origin], return_index=True)
        groups = zip(senders.tolist(), np.split(rows[by_origin], begins[1:]), strict=True) if len(rows) else ()
        known = [(incarnation, sent) for incarnation, sent in groups if incarnation in self._slots]
        known.sort(key=lambda group: -int(memory.cursors["end"][self._slots[group[0]]]))
        found, room = dict[int, LaneEnds](), MAX_LANES
        for incarnation, sent in known:
            own = sent[sent >= since.get(incarnation, 0)]
            ends = LaneEnds()
            ends.find(own, self._read(LANE.name, own), self._read(FINAL.name, own))
            room -= len(ends)
            if room < 0:
                break
            found[incarnation] = ends
        return dict(reversed(found.items()))

    def _read(self, column: str, rows: Array) -> Array:
        values: Array = self._memory.columns[column][rows % self._memory.n_slots]
        return values

    def _use_ends(self, incarnation: int, *, follows: bool) -> LaneEnds:
        """The last rows of the lanes of an actor process; none if its batch follows dropped rows."""
        ends = self._ends.pop(incarnation, None)
        if ends is None or not follows:
            ends = LaneEnds()
        self._ends[incarnation] = ends  # The process that stored a batch longest ago comes first.
        return ends

    def _forget_lanes(self) -> None:
        """Keep the last rows of at most ``MAX_LANES`` lanes of all processes, or those of the newest process alone.

        The lanes of the process that stored a batch longest ago are forgotten first: its next rows are then stored
        without a link to earlier rows.
        """
        n_lanes = sum(map(len, self._ends.values()))
        while n_lanes > MAX_LANES and len(self._ends) > 1:
            n_lanes -= len(self._ends.pop(next(iter(self._ends))))

    def require_cursor(self, incarnation: int) -> None:
        """Check that an actor process of this incarnation can store a batch.

        Raises:
            CursorsFullError: it cannot store one now.
        """
        if incarnation not in self._slots:
            self._find_free_slot()

    def _take_slot(self, incarnation: int) -> None:
        slot = self._find_free_slot()
        gone = int(self._memory.cursors["incarnation"][slot])
        self._slots.pop(gone, None)
        self._ends.pop(gone, None)
        self._memory.cursors[slot] = 0
        self._slots[incarnation] = slot

    def _find_free_slot(self) -> int:
        """The slot of a cursor that no process needs; if several, that of the process that stored longest ago.

        An actor process needs its cursor as long as it may send its last batch again because the acknowledgement was
        lost: without the cursor that batch would be stored twice. It does not need the cursor once it is gone. If none
        is gone, a process that holds no id gives up its cursor once all of its rows have been overwritten; if there is
        none, the process that ``least_needed`` names. So newcomers are not kept out by processes that hold no id.
        """
        incarnations, ends = (self._memory.cursors[name].tolist() for name in ("incarnation", "end"))
        slots, first = sorted(range(len(ends)), key=ends.__getitem__), self._memory.first()
        free = (slot for slot in slots if not incarnations[slot] or self._is_gone(incarnations[slot]))
        overwritten = (slot for slot in slots if ends[slot] <= first and not self._is_present(incarnations[slot]))
        slot = next(chain(free, overwritten), None)
        if slot is None and self._least_needed is not None:
            absent = {incarnations[slot]: slot for slot in slots if not self._is_present(incarnations[slot])}
            slot = absent[self._least_needed([*absent])] if absent else None
        if slot is None:
            raise CursorsFullError(
                f"the replay has cursors for {len(ends)} actor processes, and all of these may still send a batch again"
            )
        return slot


OWN: Final = 1
"""The incarnation under which the learner's own process stores rows."""


class LocalSink:
    """An ``ItemSink`` that writes into the replay of its own process.

    Args:
        memory: no other process writes to it.
        rules: decide which values may be stored.
    """

    def __init__(self, memory: ReplayMemory, rules: ValueRules) -> None:
        self._schema, self._rules = memory.schema, rules
        self._writer = ReplayWriter(memory)
        self._seq = self._writer.last_seq(OWN)

    def takes(self, rows: int) -> bool:  # noqa: ARG002 - as in ItemSink
        """Whether the sink wants a push of this many rows: always."""
        return True

    def push(self, items: Items) -> None:
        """Store rows, or self-contained items; an empty batch stores nothing.

        Raises:
            SchemaMismatchError: they have other columns.
            RefusedError: a value may not be stored.
        """
        rows = self._schema.count(items)
        if rows:
            checked = self._rules.check(items, rows)
            self._seq += 1
            self._writer.append(checked, rows, incarnation=OWN, seq=self._seq)

    def mark(self) -> dict[str, Any]:
        """See ``ReplayWriter.mark``."""
        return self._writer.mark()

    def roll_back(self, mark: Mapping[str, Any]) -> bool:
        """See ``ReplayWriter.roll_back``."""
        return self._writer.roll_back(mark, OWN)
