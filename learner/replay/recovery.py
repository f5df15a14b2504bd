"""After a power cut or a copy: finds the rows of a replay that are whole, and lets the run go on with them.

Pages reach the disk in any order, so after another boot of the host any row may be old, new or torn, and so may be
header, cursors and records. The same holds for files that were copied while a learner wrote them. Bytes that a
checkpoint has synced are there, unless a later batch has begun to overwrite them. So every batch of which the log has a
whole record is compared with its checksum. Batches that follow one another and are all whole form a stretch. The replay
goes on with the stretch that holds the last row of the newest checkpoint or, if that row has been overwritten, with the
longest later stretch. A replay that is older than the checkpoint goes on with its longest stretch. All other rows are
given up, and the links of the rows that stay are computed again, see ``learner.replay.links``.

The watermark in each checkpoint says which row was the last: see ``Watermark``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from common.depth import parse_json
from common.errors import CheckpointError
from common.shared.mapped import fence, holding_alone
from learner.replay.batch_log import Batch
from learner.replay.memory import ReplayMemory

log = logging.getLogger(__name__)
Cursor = tuple[int, int, int]
"""Incarnation, its highest seq that is stored, and where rows ended with that batch."""
_TRIES: Final = 8


@dataclass(frozen=True)
class Watermark:
    """The extent of a replay at one moment between two batches.

    A checkpoint takes the watermark first, then syncs the replay, and then keeps the watermark. So all rows below the
    watermark are on disk: after a power cut a run loses none of them, except rows that were overwritten since.

    Args:
        oldest: absolute index of the oldest row.
        committed: rows ever stored.
        steps: steps ever stored.
        batches: batches ever stored.
        cursors: of all actor processes that had stored a batch.
    """

    oldest: int
    committed: int
    steps: int
    batches: int
    cursors: list[Cursor]

    @classmethod
    def of_nothing(cls, memory: ReplayMemory) -> Watermark:
        """The watermark of a replay before its first batch."""
        return cls(memory.began, memory.began, memory.steps_began, 0, [])

    @classmethod
    def of(cls, memory: ReplayMemory) -> Watermark:
        """The present watermark; a writer may store batches during the call.

        Raises:
            CheckpointError: the writer overwrites the whole log while it is read.
        """
        for _ in range(_TRIES):
            watermark = cls._read(memory)
            if watermark is not None:
                return watermark
        raise CheckpointError(
            f"{memory.directory}: a log of {memory.log.length} batches is overwritten while it is read"
        )

    @classmethod
    def _read(cls, memory: ReplayMemory) -> Watermark | None:
        """The present watermark; None if the log has lost a record of the batches that were stored while it was read.

        The writer may change cursors while they are read here. It changes a cursor only when it stores a batch, so the
        records of the batches that came between the two looks at ``batches`` say which cursors changed, and how.
        """
        oldest, before = memory.first(), int(memory.header.batches)
        cursors = {
            int(row["incarnation"]): _as_cursor(row.tolist()) for row in memory.cursors[memory.cursors["seq"] > 0]
        }
        fence()
        number = int(memory.header.batches)
        if not number:
            return cls.of_nothing(memory)
        recent = [memory.log.read(n) for n in range(max(0, before - 1), number)]
        last = recent[-1]
        if None in recent or last is None:
            return None
        cursors |= {b.incarnation: (b.incarnation, b.seq, b.end) for b in recent if b and b.incarnation}
        return cls(oldest, last.end, last.steps_end, number, list(cursors.values()))

    def to_json(self) -> str:
        """As text for a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Watermark:
        """From the text that ``to_json`` gave.

        Raises:
            ValueError, LookupError, TypeError: the text is not that of a watermark.
        """
        return cls.from_values(parse_json(text))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Watermark:
        """From the values of a text of JSON.

        Raises:
            ValueError, LookupError, TypeError: they are not those of a watermark.
        """
        return cls(**{**values, "cursors": [_as_cursor(cursor) for cursor in values["cursors"]]})


def _as_cursor(values: list[int]) -> Cursor:
    incarnation, seq, end = values[:3]
    return incarnation, seq, end


def make_whole(memory: ReplayMemory, find_watermark: Callable[[], Watermark | None]) -> None:
    """Give up the rows that a power cut or a copy may have damaged, so that a resumed run can draw from all other rows.

    No checksum is compared if the files are those that were written, the host has not been restarted since the last
    write, no write to the disk has failed, and no file contradicts another.
    After a kill in the middle, the next call ends with the same files.

    Args:
        memory: opened for writing, with ``checked=False``.
        find_watermark: finds the watermark of the newest checkpoint, None if there is none; called only if needed.

    Raises:
        RunDirectoryError: an ingest process is still writing.
    """
    problem = memory.find_problem()
    if problem is None and memory.is_settled():
        memory.settle()
        memory.recount()
        return
    moved = "its files were copied, the host was restarted, the disk was mounted again, or a write to it failed"
    cause = moved if problem is None else f"its files contradict one another ({problem})"
    with holding_alone(memory.directory.parent):
        log.info("%s: %s: every batch is compared with its checksum", memory.directory, cause)
        watermark = find_watermark() or Watermark.of_nothing(memory)
        records = memory.log.read_all()
        kept = _choose(memory, records, watermark)
        known_end = max([watermark.committed, *(batch.end for batch in records)])
        _keep_only(memory, kept, records, watermark)
        _report(memory, watermark.oldest, known_end, cause)


def find_whole_bounds(memory: ReplayMemory) -> tuple[int, int]:
    """First and end of the absolute indices of rows that are whole, in files that are only read and not written.

    If a power cut or a copy may have damaged the links, those of the whole rows are computed again, in this process
    only.
    """
    if memory.is_settled():
        return memory.first(), memory.committed
    kept = _choose(memory, memory.log.read_all(), Watermark.of_nothing(memory))
    first, end = (max(memory.first(), kept[0].start), min(memory.committed, kept[-1].end)) if kept else (0, 0)
    if memory.links is not None:
        memory.links.use_private_next()
        memory.links.rebuild(first, end)
    return first, end


def settle_whole(memory: ReplayMemory) -> bool:
    """Compare all rows of files that nobody writes any more with their checksums, and note that they are whole.

    Links to later rows have no checksum, so they are computed again.

    Returns:
        Whether each row is whole and there is at least one. Otherwise the files stay as they are.
    """
    stretches = find_stretches(memory, memory.log.read_all(), Watermark.of_nothing(memory))
    bounds = [(stretch[0].start, stretch[-1].end, stretch[-1].steps_end) for stretch in stretches]
    if bounds != [(memory.first(), memory.committed, memory.steps)]:
        return False
    if memory.links is not None:
        memory.links.rebuild(memory.first(), memory.committed)
    memory.recount()
    memory.settle()
    memory.close()
    return True


def _choose(memory: ReplayMemory, records: list[Batch], watermark: Watermark) -> list[Batch]:
    """The stretch to go on with; empty if there is none.

    A checkpoint syncs the log too. So if the log knows of no row as late as the watermark, the files are an older copy,
    and the watermark says nothing about them.
    """
    if max((batch.end for batch in records), default=0) < watermark.committed:
        watermark = Watermark.of_nothing(memory)
    return choose_stretch(find_stretches(memory, records, watermark), watermark)


def find_stretches(memory: ReplayMemory, records: Iterable[Batch], watermark: Watermark) -> list[list[Batch]]:
    """The stretches of batches that follow one another and are whole.

    Args:
        memory: holds the batches.
        records: by number.
        watermark: batches that had been overwritten when it was taken are not compared.
    """
    stretches: list[list[Batch]] = []
    for batch in records:
        if batch.end <= watermark.committed - memory.n_slots or memory.compute_checksum(batch) != batch.checksum:
            continue
        if not (stretches and stretches[-1][-1].is_followed_by(batch)):
            stretches.append([])
        stretches[-1].append(batch)
    return stretches


def choose_stretch(stretches: list[list[Batch]], watermark: Watermark) -> list[Batch]:
    """The stretch that holds the last row below the watermark, or else the longest later stretch; empty without either.

    Rows keep their absolute indices in an exported copy, but batches are numbered anew there. So only indices tell
    where a watermark lies.
    """
    for stretch in stretches:
        if stretch[0].start < watermark.committed <= stretch[-1].end:
            return stretch
    later = [stretch for stretch in stretches if stretch[-1].end >= watermark.committed]
    return max(later, key=lambda stretch: (stretch[-1].end - stretch[0].start, stretch[-1].number), default=[])


def _keep_only(memory: ReplayMemory, kept: list[Batch], records: list[Batch], watermark: Watermark) -> None:
    """Make header, cursors and log say that the replay holds these batches and no others.

    The header names no files until all files are on disk. So after a kill in the middle, the next call
    compares all batches again.
    """
    header = memory.header
    header.place = 0
    fence()
    if kept:
        number, end, steps = kept[-1].number + 1, kept[-1].end, kept[-1].steps_end
    else:
        number, end, steps = watermark.batches, watermark.committed, watermark.steps
    _set_cursors(memory, _merge_cursors(memory, [b for b in records if b.number < number], watermark.cursors, end))
    if not kept:  # The log always has a last batch; here it is a batch without rows.
        kept = [Batch(number, end, 0, steps, incarnation=0, seq=0, follows=1, checksum=0)]
        memory.log.write(kept[0])
        number += 1
    memory.log.keep(0, number)
    header.oldest, header.intact = (max(kept[0].start, end - room) for room in (memory.capacity, memory.n_slots))
    header.committed, header.steps, header.batches = end, steps, number
    if memory.links is not None:
        memory.links.rebuild(int(header.intact), end)
    memory.recount()
    memory.sync()
    memory.settle()


def _merge_cursors(memory: ReplayMemory, records: list[Batch], synced: list[Cursor], end: int) -> dict[int, Cursor]:
    """The highest cursor of each incarnation in table, log and watermark; cursors beyond ``end`` do not count.

    A cursor is never below a batch whose rows stay, since the log has that batch's record: no row is ever stored twice.
    If records are lost, a cursor may be too low. Then the rows of those batches are lost too, and an actor that still
    has them sends them again.
    """
    merged: dict[int, Cursor] = {}
    table = [_as_cursor(row) for row in memory.cursors[memory.cursors["seq"] > 0].tolist()]
    logged = [(b.incarnation, b.seq, b.end) for b in records if b.incarnation]
    for cursor in (*table, *synced, *logged):
        incarnation, seq, cursor_end = cursor
        if 0 <= cursor_end <= end and seq > merged.get(incarnation, (0, 0))[1]:
            merged[incarnation] = cursor
    newest = sorted(merged.values(), key=lambda cursor: -cursor[2])[: len(memory.cursors)]
    return {cursor[0]: cursor for cursor in newest}


def add_cursors(memory: ReplayMemory, cursors: Iterable[Cursor]) -> None:
    """Keep the cursors of further actor processes, which have no rows in the replay any more; nobody may write."""
    _set_cursors(memory, _merge_cursors(memory, [], [*cursors], memory.committed))


def _set_cursors(memory: ReplayMemory, cursors: dict[int, Cursor]) -> None:
    """Write each cursor into the slot that its incarnation has, or into a free one; clear the slots of all others."""
    table, left = memory.cursors, dict(cursors)
    for slot in (table["incarnation"] != 0).nonzero()[0]:
        table[slot] = *left.pop(int(table["incarnation"][slot]), (0, 0, 0)), 0
    free = (table["incarnation"] == 0).nonzero()[0]
    for slot, cursor in zip(free, left.values(), strict=False):
        table[slot] = *cursor, 0


def _report(memory: ReplayMemory, synced_oldest: int, known_end: int, cause: str) -> None:
    """Log how many rows are left and how many are lost.

    Args:
        memory: as it is now.
        synced_oldest: the oldest row at the last checkpoint; rows from there on, as many as there is room for, were
            there before the power cut.
        known_end: the highest absolute index that watermark or log know of.
        cause: why rows were compared.
    """
    first, end = memory.first(), memory.committed
    n_old = max(0, first - max(synced_oldest, end - memory.capacity))
    if end == known_end and not n_old:
        log.info("%s: %s; all %d rows are whole", memory.directory, cause, len(memory))
    else:
        log.warning(
            "%s: %s; %d rows are whole and stay, from index %d on. The run has lost %d rows before them, which were "
            "being overwritten, and at least %d rows from index %d on",
            *(memory.directory, cause, len(memory), first, n_old, known_end - end, end),
        )
