"""A copy of a run's directory from which the run can be resumed, made while a learner uses it or afterwards.

Checkpoints are copied first and the replay last, since a resumed run keeps rows that came after its checkpoint.
Nothing in the run's own directory is written or locked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from common.config.pool_config import POOL
from common.errors import RunDirectoryError
from learner.replay.batch_log import Batch
from learner.replay.copying import ROWS, list_batches, open_copy, read_rows
from learner.replay.memory import ReplayMemory
from learner.replay.ratio import copy_ratio
from learner.replay.recovery import find_whole_bounds
from learner.shared.control import ControlBlock
from learner.shared.durable import READ_TRIES, locate, read_whole, removing_unfinished, sync
from learner.storage.rundir import list_states, read_identity
from learner.storage.training_state import read_newest_state

REPLAY_TRIES: Final = 64
"""The copy of a replay is tried this many times, each time with later rows, and at last with the newest row alone."""


@dataclass(frozen=True)
class Backup:
    """The opt step of a backup's checkpoint, and the number of rows in its replay, or in the shards of all ranks."""

    opt_steps: int
    rows: int


def back_up(run: Path, to: Path) -> Backup:
    """Copy the policies of a run and the files that a resumed run needs; a kill leaves no incomplete ``to``.

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
    """
    memory, later = ReplayMemory.open_saved(source), 0
    for _ in range(REPLAY_TRIES):
        first, end = find_whole_bounds(memory)
        begin = min(first + later, end)
        batches = list(list_batches(memory.log.read_all(), begin, end, join_rows=memory.capacity))
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


def _copy_batches(memory: ReplayMemory, copy: ReplayMemory, batches: Iterable[Batch]) -> bool:
    """Copy the rows of these batches; False if a batch was overwritten before it was copied."""
    writer = open_copy(copy, memory.cursors["incarnation"].tolist())
    for batch in batches:
        rows = read_rows(memory, batch.start, batch.end)
        if rows is None:
            return False
        writer.copy(*rows, batch)
    return True
