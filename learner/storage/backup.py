"""A copy of a run's directory from which the run can be resumed, made while a learner uses it or afterwards.

Checkpoints are copied first and the replay last, since a resumed run keeps rows that came after its checkpoint.
Nothing in the run's own directory is written or locked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from common.config.pool_config import POOL
from common.errors import RunDirectoryError
from common.shared.mapped import fence
from learner.replay.batch_log import Batch
from learner.replay.memory import ReplayMemory
from learner.replay.ratio import copy_ratio
from learner.replay.recovery import find_whole_bounds
from learner.replay.ring import read_ring
from learner.replay.writer import ReplayWriter
from learner.shared.control import ControlBlock
from learner.shared.durable import READ_TRIES, locate, read_whole, removing_unfinished, sync
from learner.storage.rundir import list_states, read_identity
from learner.storage.training_state import read_newest_state

ROWS: Final = 1024
"""The most rows that are copied at a time."""
REPLAY_TRIES: Final = 64
"""The copy of a replay is tried this many times, each time with later rows, and at last with the newest row alone."""
_UNKNOWN: Final = 2**64 - 1
"""Stands for an unknown incarnation of rows. Actors draw their incarnations at random from all 64-bit numbers."""


@dataclass(frozen=True)
class Backup:
    """The opt step of a backup's checkpoint, and the number of rows in its replay, or in the shards of all ranks."""

    opt_steps: int
    rows: int


def back_up(run: Path, to: Path) -> Backup:
    """Copy the policies of a run and the files that a resumed run needs; a kill leaves no incomplete ``to``.

    Args:
        run: the run's directory.
        to: a directory that does not exist yet.

    Raises:
        RunDirectoryError: ``to`` exists or cannot be written, or ``run`` is not the directory of a run that has begun.
        CheckpointError: none of the run's checkpoints is whole.
    """
    if to.exists():
        raise RunDirectoryError(f"{to}: expected a new directory, found one that exists")
    try:
        with removing_unfinished(to.with_name(f".{to.name}.part")) as draft:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True, mode=0o700)
            backup = _copy_rank(run, draft, ("config.yaml", "run.json", "metrics.csv"))
            for file in sorted(run.glob("rank-*/run.json")):
                shard = draft / file.parent.name
                shard.mkdir(mode=0o700)
                rows = _copy_rank(file.parent, shard, ("config.yaml", "run.json")).rows
                backup = replace(backup, rows=backup.rows + rows)
            for path in draft.rglob("*"):
                sync(path)
            draft.rename(to)
            sync(to.parent)
    except OSError as error:
        raise RunDirectoryError(f"{to}: {run} cannot be copied there: {error}") from error
    return backup


def _copy_rank(run: Path, to: Path, names: Iterable[str]) -> Backup:
    """Copy the directory of one rank, with its shard of the replay; rank 0 has the run's directory and its replay."""
    opt_steps = _copy_files(run, to, names)
    (to / "shared").mkdir(mode=0o700)
    _copy_shared(run / "shared", to / "shared")
    rows = _copy_replay(run / "shared" / "replay", to / "shared" / "replay")
    _copy_sources(run / "shared" / "sources", to / "shared" / "sources")
    (to / "lock").touch(0o600)
    return Backup(opt_steps, rows)


def _copy_files(run: Path, to: Path, names: Iterable[str]) -> int:
    """Copy all files except the replay; return the opt step of the checkpoint."""
    run_id = read_identity(run).run_id
    for name in names:
        shutil.copy(run / name, to / name)
    for name in ("best", "final"):
        if locate(run / name) is not None:
            _copy_directory(run / name, to / name)
    _copy_newest_state(run, to / "checkpoints")
    _copy_pool(run / POOL, to / POOL)
    state = read_newest_state(to / "checkpoints", run_id)
    if state is None:
        raise RunDirectoryError(f"{run}: expected a state of training in checkpoints/, found none")
    return state.opt_steps


def _copy_pool(source: Path, to: Path) -> None:
    """Copy the pool, if there is one, without models that the learner removes during the copy."""
    if not source.exists():
        return
    to.mkdir(mode=0o700)
    for file in sorted(source.iterdir()):
        with suppress(FileNotFoundError):
            shutil.copy(file, to / file.name)


def _copy_newest_state(run: Path, to: Path) -> None:
    """Copy the newest checkpoint, if there is one."""
    for _ in range(READ_TRIES):
        newest = next(iter(list_states(run)), None)
        if newest is None:
            return
        try:
            _copy_directory(newest, to / newest.name)
        except FileNotFoundError:
            continue  # The learner has removed it, and a newer one is there.
        return
    raise RunDirectoryError(f"{to}: the learner has removed {READ_TRIES} checkpoints while they were copied; try again")


def _copy_directory(source: Path, to: Path) -> None:
    """Copy a directory that the learner may replace or remove during the copy.

    First all files are opened. From then on they can be read, even if they have been removed.
    """
    with ExitStack() as stack:

        def open_files(place: Path) -> list[BinaryIO]:
            return [stack.enter_context(file.open("rb")) for file in place.iterdir()]

        files = read_whole(source, open_files)
        to.mkdir(parents=True)
        for file in files:
            shutil.copy(f"/proc/self/fd/{file.fileno()}", to / Path(file.name).name)


def _copy_shared(shared: Path, to: Path) -> None:
    """Copy what people have set while the run went on, and the largest limits that actors have been told."""
    for name in ("cordons.json", "limits.json"):
        with suppress(FileNotFoundError):  # A run without actors has none.
            shutil.copy(shared / name, to / name)
    if (shared / "control").exists():
        copy_ratio(ControlBlock.open(shared, writable=False), ControlBlock.open(to, create=True))


def _copy_sources(sources: Path, to: Path) -> None:
    """Copy the read-only sources of the replay: their datasets may be gone when the run is resumed."""
    if sources.exists():
        shutil.copytree(sources, to, ignore=shutil.ignore_patterns(".*"))  # A hidden directory is unfinished.


def _copy_replay(source: Path, to: Path) -> int:
    """Copy the rows that are whole, in order, with their links and under their own indices; return their number.

    If actors overwrite the oldest rows before they are copied, the copy begins again: first with nearly as many rows,
    then with half of the rows of the last try.

    Raises:
        RunDirectoryError: actors overwrote the rows of all tries.
    """
    memory, later = ReplayMemory.open_saved(source), 0
    for _ in range(REPLAY_TRIES):
        first, end = find_whole_bounds(memory)
        begin = min(first + later, end)
        batches = list(_list_batches(memory, begin, end))
        steps = batches[-1].steps_end if batches else memory.steps
        to.parent.mkdir(mode=0o700, exist_ok=True)
        copy = ReplayMemory(
            to,
            memory.schema,
            memory.capacity,
            create=True,
            slack=memory.slack,
            began=begin,
            steps_began=steps - memory.count_steps(begin, end),
        )
        if _copy_batches(memory, copy, batches):
            copy.close()  # All its rows are whole, so no checksum is compared while these files stay on this host.
            return len(copy)
        shutil.rmtree(to)
        later = min(max(ROWS, 2 * later), (end - first + later) // 2)
    raise RunDirectoryError(
        f"{source}: actors have overwritten the rows {REPLAY_TRIES} times while they were copied; try again, or make"
        " replay.capacity larger"
    )


def _list_batches(memory: ReplayMemory, begin: int, end: int) -> Iterator[Batch]:
    """Batches that hold the rows ``[begin, end)``. Batches of one actor that follow one another are joined."""
    joined = Batch(0, begin, 0, 0, _UNKNOWN, seq=1, follows=1, checksum=0)
    for found in memory.log.read_all():
        if not begin < found.end <= end:
            continue
        if found.start > joined.end:  # The log has lost the records of the rows before.
            yield from _split(joined._replace(rows=found.start - joined.start))
            joined = joined._replace(start=found.start, rows=0)
        batch = found._replace(start=joined.end, rows=found.end - joined.end)
        is_same = batch.incarnation == joined.incarnation and batch.follows
        if is_same and joined.rows + batch.rows <= min(ROWS, memory.capacity):
            joined = batch._replace(start=joined.start, rows=joined.rows + batch.rows, follows=joined.follows)
        else:
            yield from _split(joined)
            joined = batch
    yield from _split(joined)


def _split(batch: Batch) -> Iterator[Batch]:
    """The same rows in batches of ``ROWS`` rows at most."""
    for start in range(batch.start, batch.end, ROWS):
        rows = min(ROWS, batch.end - start)
        yield batch._replace(start=start, rows=rows, follows=batch.follows if start == batch.start else 1)


def _copy_batches(memory: ReplayMemory, copy: ReplayMemory, batches: Iterable[Batch]) -> bool:
    """Copy the rows of these batches; False if a batch was overwritten before it was copied.

    A replay may have rows of more actor processes than it has cursors. The processes without a cursor are gone.
    """
    kept = set(memory.cursors["incarnation"].tolist())
    writer, links = ReplayWriter(copy, is_gone=lambda incarnation: incarnation not in kept), memory.links
    for batch in batches:
        items = {name: read_ring(ring, batch.start, batch.end) for name, ring in memory.columns.items()}
        previous = read_ring(links.previous, batch.start, batch.end) if links is not None else None
        fence()
        if batch.start < memory.first():
            return False
        writer.copy(items, previous, batch)
    return True
