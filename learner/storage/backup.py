"""A copy of a run's directory from which the run can be resumed, made while a learner uses it or afterwards.

Checkpoints are copied first and the replay last, since a resumed run keeps items that came after its checkpoint.
Nothing in the run's own directory is written or locked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from common.errors import RunDirectoryError
from learner.replay.memory import ReplayMemory
from learner.replay.reader import ReplayReader
from learner.replay.writer import ReplayWriter
from learner.shared.durable import removing_unfinished, sync
from learner.storage.rundir import list_states, read_identity
from learner.storage.training_state import read_newest_state

ROWS: Final = 1024
"""Items that are copied at a time."""
TRIES: Final = 10
"""The copy of a directory is tried this many times, since the learner may replace the directory meanwhile."""
_COPIED: Final = 2
"""The incarnation of copied items. No actor has it, and no process that stores its own items."""


@dataclass(frozen=True)
class Backup:
    """The opt step of a backup's checkpoint, and the number of items in its replay."""

    opt_steps: int
    items: int


def back_up(run: Path, to: Path) -> Backup:
    """Copy the policies of a run and the files that resuming it needs; a kill leaves no incomplete ``to``.

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
            opt_steps = _copy_files(run, draft)
            items = _copy_replay(run / "shared" / "replay", draft / "shared" / "replay")
            (draft / "lock").touch(0o600)
            for path in draft.rglob("*"):
                sync(path)
            draft.rename(to)
            sync(to.parent)
    except OSError as error:
        raise RunDirectoryError(f"{to}: {run} cannot be copied there: {error}") from error
    return Backup(opt_steps, items)


def _copy_files(run: Path, to: Path) -> int:
    """Copy all but the replay; return the opt step of the checkpoint."""
    run_id = read_identity(run).run_id
    for name in ("config.yaml", "run.json", "metrics.csv"):
        shutil.copy(run / name, to / name)
    for name in ("best", "final"):
        if (run / name).exists():
            _copy_newest(partial(list, [run / name]), to)
    _copy_newest(partial(list_states, run), to / "checkpoints")
    state = read_newest_state(to / "checkpoints", run_id)
    if state is None:
        raise RunDirectoryError(f"{run}: expected a state of training in checkpoints/, found none")
    return state.opt_steps


def _copy_newest(candidates: Callable[[], Iterable[Path]], to: Path) -> None:
    """Copy the first of the directories that ``candidates`` lists, whole.

    During the copy the learner may replace or remove the directory. So the copy reads through a file descriptor, which
    refers to the same directory under any name. If a file is missing, the copy begins anew.
    """
    for _ in range(TRIES):
        path = next(iter(candidates()), None)
        if path is None:
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            shutil.copytree(f"/proc/self/fd/{fd}", to / path.name)
            return
        except (FileNotFoundError, shutil.Error):
            shutil.rmtree(to / path.name, ignore_errors=True)
        finally:
            os.close(fd)
    raise RunDirectoryError(f"{to}: the learner has replaced the original {TRIES} times while it was copied; try again")


def _copy_replay(source: Path, to: Path) -> int:
    """Copy the items that are whole, in order and under their own indices; return their number.

    Where actors overwrite the oldest items before they are copied, the copy begins anew with later items.
    """
    memory, later = ReplayMemory.open_saved(source), 0
    while True:
        begin, end = min(memory.first() + later, memory.committed), memory.committed
        to.parent.mkdir(mode=0o700, exist_ok=True)
        copy = ReplayMemory(
            to,
            memory.schema,
            memory.capacity,
            create=True,
            frame_capacity=memory.frames.capacity if memory.frames is not None else 0,
            slack=memory.slack,
            began=begin,
        )
        if _copy_items(memory, copy, begin, end):
            copy.close()  # Any host can open a closed replay without comparing checksums.
            return len(copy)
        shutil.rmtree(to)
        later = max(ROWS, 2 * later)


def _copy_items(memory: ReplayMemory, copy: ReplayMemory, begin: int, end: int) -> bool:
    """Copy the items with absolute indices in ``[begin, end)``; False if one of them was overwritten meanwhile."""
    reader, writer, rows = ReplayReader(memory), ReplayWriter(copy), min(ROWS, copy.max_rows)
    for seq, start in enumerate(range(begin, end, rows), start=1):
        index = np.arange(start, min(start + rows, end))
        items = reader.read(index)
        if items is None:
            return False
        writer.append(items, len(index), incarnation=_COPIED, seq=seq)
    return True
