"""Mirroring a run while it goes on: reads its directory, as a copy does, and writes one state after another.

Files come first and rows last, since a resumed run keeps rows that came after its checkpoint. Rows go in segments: each
state adds the rows that were stored since the last one. Small segments are joined, level by level, so that each row is
sent a few times at most and a state names some hundred segments. Segments whose rows have left the replay are dropped.
"""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from learner.replay.batch_log import Batch
from learner.replay.copying import count_steps, list_batches, pack, read_rows
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import Watermark
from learner.replay.ring import compute_checksum
from learner.shared.durable import READ_TRIES, read_whole, target_of
from learner.shared.mirror_block import FILE, MirrorBlock
from learner.storage.mirror import (
    EPOCH_FILE,
    Mirror,
    MirrorAwayError,
    keep_past,
    read_past,
)
from learner.storage.mirrored_state import MirroredState, Segment
from learner.storage.rundir import ENDPOINTS, FORMER_ENDPOINTS

log = logging.getLogger(__name__)
SEGMENT_BYTES: Final = 32 << 20
"""The most bytes of rows in one segment."""
FANOUT: Final = 16
"""This many segments of one level are joined."""
LEFT_OUT: Final = frozenset({"lock", ENDPOINTS, FORMER_ENDPOINTS, EPOCH_FILE})
"""Files that belong to this host."""
SHARED_LEFT_OUT: Final = frozenset({"replay", "models", "candidates", FILE})
"""Names in ``shared/`` that are mirrored as rows, or made anew by each life of the run."""


class Mirroring:
    """Writes the states of one run.

    Args:
        run: the run's directory, in which a learner has begun.
        run_id: of the run.
        mirror: owned by this process.
        newest: the state of the mirror from which it goes on.
        block: tells trainer and ingest how far the mirror is.
        seconds: rows are sent for about this long before a state is written.
        is_away: the mirror may be away, and is read when it can be reached; ``newest`` is None then. What the block
            says of an earlier process of this life still holds.
        is_late: this life has not claimed the mirror; it does when the mirror can be reached.
    """

    def __init__(
        self,
        run: Path,
        run_id: str,
        mirror: Mirror,
        newest: MirroredState | None,
        *,
        block: MirrorBlock,
        seconds: float,
        is_away: bool = False,
        is_late: bool = False,
    ) -> None:
        self._run, self._run_id, self._mirror, self._block, self._seconds = run, run_id, mirror, block, seconds
        self._memory = ReplayMemory.open_saved(run / "shared" / "replay")
        self._layout = json.loads((run / "shared" / "replay" / "layout.json").read_text())
        self._most_rows = max(1, min(SEGMENT_BYTES // self._memory.schema.row_bytes, self._memory.capacity // 2))
        self._is_late, self._is_away = is_late, is_away
        """Whether the mirror was not in its place since it was read."""
        self._has_failed = False
        """Whether the last try ended with an error."""
        self._put = set[str]()
        """What a state has for the files that the last try has sent."""
        self._segments = list[Segment]()
        if not is_away:
            self._begin_from(newest)

    def _begin_from(self, newest: MirroredState | None) -> None:
        """Go on from the newest state that the mirror has."""
        sent = [] if newest is None else [segment for segment in newest.segments if self._mirror.has(segment.name)]
        self._segments = self._find_same(sent)
        self._block.mirrored = self._end
        self._sent_files = dict[str, tuple[tuple[int, ...], str]]()
        """By path, the file that was sent last: its inode, size and time, and what a state has for it."""
        self._written: tuple[object, ...] = ()

    def _find_same(self, segments: list[Segment]) -> list[Segment]:
        """The newest of these segments that follow one another and whose rows are in the replay as they are here.

        After a power cut the replay may hold other rows under the same indices, so the rows are compared. Those of the
        oldest segment may have left the replay in part.
        """
        same, memory = list[Segment](), self._memory
        for segment in reversed(segments):
            if segment.end <= memory.first() or (same and segment.end != same[0].start):
                break
            is_partial = segment.start < memory.first()
            batch = Batch(0, segment.start, segment.end - segment.start, 0, 0, 0, 0, 0)
            if (is_partial and same) or (
                not is_partial
                and segment.end <= memory.committed
                and memory.compute_checksum(batch) == segment.checksum
            ):
                same.insert(0, segment)
            elif same:
                break
        return same

    def write_state(self) -> bool:
        """Write a state of the run as it is now, if anything has changed; False if there are further rows to send.

        Nothing is sent to a place where the mirror is not, such as the directory on which its disk should be mounted.
        When the mirror is back, it is read anew.

        Raises:
            TakenOverError: another learner owns the mirror now.
            OSError: the mirror cannot be reached, or a file cannot be read.
        """
        at, now = time.monotonic(), time.time()
        try:
            if self._is_away:
                self._return()
            self._mirror.require_owner()
            if self._has_failed:
                self._tidy()
            self._has_failed, self._put = True, set()
            files = self._send_files()
            watermark = Watermark.of(self._memory)
            self._send_rows(watermark, at + self._seconds)
            # The state comes last: whoever reads it finds all files and rows that it names.
            written = (files, self._segments)
            if written != self._written:
                self._mirror.write(
                    MirroredState(
                        run_id=self._run_id,
                        epoch=self._mirror.epoch,
                        at=now,
                        files=files,
                        layout=self._layout,
                        watermark=watermark,
                        segments=self._segments,
                    )
                )
                self._written = written
                self._block.states += 1
        except MirrorAwayError:
            self._is_away = True
            raise
        else:
            self._has_failed = False
        finally:
            self._block.sent_bytes = self._mirror.store.sent_bytes
        end = self._block.mirrored = self._end
        if end >= watermark.committed:
            self._block.mirrored_at = at
        return end >= watermark.committed

    def _tidy(self) -> None:
        """Remove what states that could not be written have left: a full mirror needs the room.

        The segments stay, and the files of the last try: they are those of the next one, unless they change.
        """
        self._sent_files = {}
        self._mirror.tidy(self._put | {segment.name for segment in self._segments})

    def _return(self) -> None:
        """Read the mirror anew, which was away; claim it again if it does not have the claim of this life."""
        past, _ = read_past(self._run)
        newest = self._mirror.return_to(self._run_id, past, partial(keep_past, self._run), is_late=self._is_late)
        self._is_late = False
        self._block.epoch = self._mirror.epoch
        self._begin_from(newest)
        self._is_away = False

    @property
    def _end(self) -> int:
        """Absolute index after the newest row that was sent."""
        return self._segments[-1].end if self._segments else self._memory.began

    # Files.

    def _send_files(self) -> dict[str, str]:
        """Send the files that are new or have changed; return what a state has for each file."""
        for _ in range(READ_TRIES):
            sent = dict[str, tuple[tuple[int, ...], str]]()
            for directory in self._list_directories():
                with suppress(FileNotFoundError):  # The learner has removed it.
                    sent |= self._send_directory(directory)
            # While one checkpoint comes and another one goes, this may have seen neither of them.
            if any(path.startswith("checkpoints/") for path in sent):
                self._sent_files = sent
                return {path: name for path, (_, name) in sent.items()}
        raise OSError(f"{self._run}: expected a checkpoint, found none in {READ_TRIES} looks")

    def _send_directory(self, directory: Path) -> dict[str, tuple[tuple[int, ...], str]]:
        """Send the files of one directory, which the learner may replace or remove meanwhile."""
        with ExitStack() as stack:

            def open_files(place: Path) -> list[io.BufferedReader]:
                return [stack.enter_context(file.open("rb")) for file in _list_files(place, self._run)]

            files = read_whole(directory, open_files)
            paths = [str((directory / Path(file.name).name).relative_to(self._run)) for file in files]
            return {path: self._send_file(path, file) for path, file in zip(paths, files, strict=True)}

    def _send_file(self, path: str, file: io.BufferedReader) -> tuple[tuple[int, ...], str]:
        stat = Path(f"/proc/self/fd/{file.fileno()}").stat()
        version = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        before = self._sent_files.get(path)
        # A write to a mapped file, as those in ``shared/`` are, need not change the time of the file.
        if before is not None and before[0] == version and not path.startswith("shared/"):
            return before
        name = self._mirror.put_file(file)
        self._put.add(name)
        return version, name

    def _list_directories(self) -> Iterator[Path]:
        """The directories whose files are mirrored, each before those in it; drafts are left out."""
        waiting = [self._run]
        while waiting:
            directory = waiting.pop()
            yield directory
            shared = SHARED_LEFT_OUT if directory == self._run / "shared" else ()
            try:
                # While a directory is replaced, only the former one may be there, under another name.
                found = {
                    target_of(path) if path.suffix == ".old" else path for path in directory.iterdir() if path.is_dir()
                }
            except FileNotFoundError:
                continue
            waiting += [path for path in found if not path.name.startswith(".") and path.name not in shared]

    # Rows.

    def _send_rows(self, watermark: Watermark, until: float) -> None:
        """Send the rows below the watermark that are not mirrored yet, until this time at the latest."""
        memory = self._memory
        self._segments = [segment for segment in self._segments if segment.end > memory.first()]
        begin = self._segments[-1].end if self._segments else memory.first()
        while begin < watermark.committed:
            segment = self._send_segment(begin, watermark.committed, watermark.steps)
            if segment is None:  # Actors have overwritten rows before they were sent.
                log.warning("rows were overwritten before they could be mirrored; the mirror has only later rows")
                self._segments, begin = [], (memory.first() + watermark.committed) // 2  # The older half may go next.
            else:
                self._segments = [*self._segments, segment]
                self._join_segments()
                begin = segment.end
            if time.monotonic() > until:
                break

    def _send_segment(self, begin: int, end: int, steps_end: int, level: int = 0) -> Segment | None:
        """Send the rows from ``begin`` on as one segment, up to ``end`` or as many as a segment may have.

        ``steps_end`` steps were stored up to ``end``; the log may have lost the record of an earlier row.

        Returns:
            None if one of them was overwritten meanwhile.
        """
        memory, batches = self._memory, list[Batch]()
        number = int(memory.header.batches)
        numbers = range(max(0, memory.log.find_number(begin, number) - 1), number)
        records = (record for n in numbers if (record := memory.log.read(n)) is not None)
        for batch in list_batches(records, begin, end):
            if batches and batch.end - begin > self._most_rows:
                break
            batches.append(batch)
        rows = read_rows(memory, begin, batches[-1].end) if batches else None
        if rows is None:
            return None
        items, previous = rows
        n = batches[-1].end - begin
        return Segment(
            start=begin,
            end=batches[-1].end,
            steps=count_steps(rows, n),
            steps_end=steps_end - memory.count_steps(batches[-1].end, end),
            checksum=compute_checksum([*items.values(), *([previous] if previous is not None else [])]),
            level=level,
            name=self._mirror.put(io.BytesIO(pack(memory.schema, rows, batches))),
        )

    def _join_segments(self) -> None:
        """Join the newest segments of one level, if there are enough of them and they are small."""
        while len(small := self._find_small()) >= FANOUT:
            joined, begin, last = list[Segment](), small[0].start, small[-1]
            while begin < last.end:
                segment = self._send_segment(begin, last.end, last.steps_end, last.level + 1)
                if segment is None:
                    return  # The oldest of them are being overwritten, and the small ones stay.
                joined.append(segment)
                begin = segment.end
            self._segments = [*(other for other in self._segments if other.start < small[0].start), *joined]

    def _find_small(self) -> list[Segment]:
        """The newest segments, as far back as they are of one level, small, and whole in the replay."""
        small, first = list[Segment](), self._memory.first()
        for segment in reversed(self._segments):
            is_small = segment.end - segment.start <= self._most_rows // 2
            if segment.level != self._segments[-1].level or not is_small or segment.start < first:
                break
            small.insert(0, segment)
        return small


def _list_files(place: Path, run: Path) -> list[Path]:
    """The files of one directory of the run that are mirrored."""
    left_out = LEFT_OUT if place == run else SHARED_LEFT_OUT if place == run / "shared" else frozenset()
    found = (path for path in sorted(place.iterdir()) if path.is_file() and path.name not in left_out)
    return [path for path in found if not path.name.startswith(".")]
