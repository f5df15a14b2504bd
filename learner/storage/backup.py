"""A copy of a run's directory from which the run can be resumed, made while a learner uses it or afterwards.

Checkpoints are copied first and the replay last, since a resumed run keeps rows that came after its checkpoint.
Nothing in the run's own directory is written or locked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from common.errors import RunDirectoryError
from common.shared.mapped import fence
from learner.replay.batch_log import Batch
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import find_whole_bounds
from learner.replay.ring import read_ring
from learner.replay.writer import ReplayWriter
from learner.shared.durable import removing_unfinished, sync
from learner.storage.checkpoint import find_policy
from learner.storage.rundir import list_states, read_identity
from learner.storage.training_state import read_newest_state

ROWS: Final = 1024
"""The most rows that are copied at a time."""
TRIES: Final = 10
"""The copy of a directory is tried this many times, since the learner may replace the directory during the copy."""
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
        _copy_newest(partial(_list_policy, run / name), to)
    _copy_newest(partial(list_states, run), to / "checkpoints")
    state = read_newest_state(to / "checkpoints", run_id)
    if state is None:
        raise RunDirectoryError(f"{run}: expected a state of training in checkpoints/, found none")
    return state.opt_steps


def _list_policy(path: Path) -> list[Path]:
    """The directory of a policy, if there is one."""
    found = find_policy(path)
    return [found] if found.exists() else []


def _copy_newest(candidates: Callable[[], Iterable[Path]], to: Path) -> None:
    """Copy the first of the directories that ``candidates`` lists, whole.

    During the copy the learner may replace or remove the directory. So the copy reads through a file descriptor, which
    refers to the same directory under any name. If a file is missing, the copy begins again.
    """
    for _ in range(TRIES):
        path = next(iter(candidates()), None)
        if path is None:
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        copy = to / path.name
        copy.mkdir(parents=True)
        try:
            for file in Path(f"/proc/self/fd/{fd}").iterdir():
                shutil.copy(file, copy / file.name)
            return
        except FileNotFoundError:
            shutil.rmtree(copy)
        finally:
            os.close(fd)
    raise RunDirectoryError(f"{to}: the learner has replaced the original {TRIES} times while it was copied; try again")


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
            copy.close()  # Any host can open a closed replay without comparing checksums.
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
    """Copy the rows of these batches; False if a batch was overwritten before it was copied."""
    writer, links = ReplayWriter(copy), memory.links
    for batch in batches:
        items = {name: read_ring(ring, batch.start, batch.end) for name, ring in memory.columns.items()}
        previous = read_ring(links.previous, batch.start, batch.end) if links is not None else None
        fence()
        if batch.start < memory.first():
            return False
        writer.copy(items, previous, batch)
    return True
