"""After a power cut: which items of a replay are whole, and going on from there.

Pages reach the disk in any order, so after another boot of the host any row may be old, new or torn, and so may be
header, cursors and records. What a checkpoint has synced is there, unless a later batch has begun to overwrite it.
So every batch of which the log has a whole record is compared with its checksum. Batches that follow one another and
are all whole form a stretch; the replay goes on with the stretch that holds the last batch of the newest checkpoint,
or with the longest stretch where that batch has been overwritten. All other items are given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from learner.replay.batch_log import Batch
from learner.replay.memory import ReplayMemory
from learner.replay.watermark import Cursor, Watermark
from learner.shared.mapped import fence, held_alone

log = logging.getLogger(__name__)


def make_whole(memory: ReplayMemory, find_watermark: Callable[[], Watermark | None]) -> None:
    """See that a replay can be gone on with; nothing happens if no boot of the host came between and its header can be.

    A kill on the way changes nothing: the next call comes to the same.

    Args:
        memory: opened for writing, with ``checked=False``.
        find_watermark: that of the newest checkpoint, None if there is none; called only where it is needed.

    Raises:
        RunDirectoryError: an ingest process is still writing.
    """
    problem = memory.problem()
    if problem is None and memory.is_settled():
        memory.settle()
        return
    cause = f"its header could not be ({problem})" if memory.is_settled() else "the host was started anew"
    with held_alone(memory.directory.parent):
        log.info("%s: %s: every batch is compared with its checksum", memory.directory, cause)
        watermark = find_watermark() or Watermark.of_nothing(memory)
        records = memory.log.whole()
        kept = choose(find_stretches(memory, records, watermark), watermark)
        known_end = max([watermark.committed, *(batch.end for batch in records)])
        _go_back(memory, kept, records, watermark)
        _tell(memory, watermark.oldest, known_end, cause)


def whole_bounds(memory: ReplayMemory) -> tuple[int, int]:
    """First and end of the absolute indices of items that are whole, in files that are only read and not written."""
    if memory.is_settled() or not memory.log.length:
        return memory.first(), memory.committed
    nothing = Watermark.of_nothing(memory)
    kept = choose(find_stretches(memory, memory.log.whole(), nothing), nothing)
    return (max(memory.first(), kept[0].start), min(memory.committed, kept[-1].end)) if kept else (0, 0)


def find_stretches(memory: ReplayMemory, records: Iterable[Batch], watermark: Watermark) -> list[list[Batch]]:
    """The stretches of batches that follow one another and are whole, with all frames to which their rows refer.

    Args:
        memory: of the batches.
        records: by number.
        watermark: items that were overwritten before it are not looked at.
    """
    stretches: list[list[Batch]] = []
    for batch in records:
        if batch.end <= watermark.committed - memory.n_slots or memory.checksum(batch) != batch.checksum:
            continue
        if not (stretches and stretches[-1][-1].is_followed_by(batch)):
            stretches.append([])
        stretches[-1].append(batch)
    with_frames = ([b for b in those if b.frames_start - b.back >= those[0].frames_start] for those in stretches)
    return [stretch for stretch in with_frames if stretch]


def choose(stretches: list[list[Batch]], watermark: Watermark) -> list[Batch]:
    """The stretch to go on with; empty if there is none."""
    for stretch in stretches:
        if stretch[0].number < watermark.batches <= stretch[-1].number + 1:
            return stretch
    return max(stretches, key=lambda stretch: (stretch[-1].end - stretch[0].start, stretch[-1].number), default=[])


def _go_back(memory: ReplayMemory, kept: list[Batch], records: list[Batch], watermark: Watermark) -> None:
    """Let header, cursors and log say that these batches are all there is."""
    header = memory.header
    header.boot = 0  # Of no boot: after a kill on the way all is looked at again.
    fence()
    if kept:
        number, end, frames_end = kept[-1].number + 1, kept[-1].end, kept[-1].frames_end
    else:
        number, end, frames_end = watermark.batches, watermark.committed, watermark.frames_end
    _set_cursors(memory, _merged(memory, [b for b in records if b.number < number], watermark.cursors, end))
    if not kept:  # The log is never without the last batch: this one has no rows.
        kept = [Batch(number, end, 0, 0, frames_end, 0, 0, 0, 0)]
        memory.log.write(kept[0])
        number += 1
    memory.log.keep(0, number)  # Earlier ones stay: batches that are kept refer to frames of theirs.
    header.oldest, header.intact = memory.whole_since(kept[0].start, end, frames_end)
    header.committed, header.frames_end, header.batches = end, frames_end, number
    memory.sync()
    memory.settle()


def _merged(memory: ReplayMemory, records: list[Batch], synced: list[Cursor], end: int) -> dict[int, Cursor]:
    """The highest cursor of each incarnation that table, log or watermark know, of batches up to this end."""
    merged: dict[int, Cursor] = {}
    table = [tuple(row) for row in memory.cursors[memory.cursors["seq"] > 0].tolist()]
    logged = [(b.incarnation, b.seq, b.end, b.frames_end) for b in records if b.incarnation]
    for cursor in (*table, *synced, *logged):
        incarnation, seq, cursor_end, _ = cursor
        if 0 <= cursor_end <= end and seq > merged.get(incarnation, (0, 0))[1]:
            merged[incarnation] = cursor
    newest = sorted(merged.values(), key=lambda cursor: -cursor[2])[: len(memory.cursors)]
    return {cursor[0]: cursor for cursor in newest}


def _set_cursors(memory: ReplayMemory, cursors: dict[int, Cursor]) -> None:
    """Write them where they are; those that the table does not have, into slots of others that do not count."""
    table, left = memory.cursors, dict(cursors)
    for slot in (table["incarnation"] != 0).nonzero()[0]:
        table[slot] = left.pop(int(table["incarnation"][slot]), (0, 0, 0, 0))
    free = (table["incarnation"] == 0).nonzero()[0]
    for slot, cursor in zip(free, left.values(), strict=False):
        table[slot] = cursor


def _tell(memory: ReplayMemory, synced_oldest: int, known_end: int, cause: str) -> None:
    """Say what has become of the replay; those of its items that were there are expected from ``synced_oldest`` on."""
    first, end = memory.first(), memory.committed
    n_old = max(0, first - max(synced_oldest, end - memory.capacity))
    if end == known_end and not n_old:
        log.info("%s: %s; all %d items are whole", memory.directory, cause, len(memory))
    else:
        log.warning(
            "%s: %s; %d items are whole and stay, from index %d on. Lost are %d before them, which were being "
            "overwritten, and those from index %d on, at least %d",
            *(memory.directory, cause, len(memory), first, n_old, end, known_end - end),
        )
