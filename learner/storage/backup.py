"""A copy of a run's directory from which the run can be resumed, made while a learner uses it or afterwards.

The states come first and the replay last, since a resumed run keeps items that came after its state. Nothing in the
run's own directory is written or locked.
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
from learner.storage.checkpoint import SaveCounts
from learner.storage.rundir import identity_of, states_in
from learner.storage.training_state import StateFiles

ROWS: Final = 1024
"""Items that are copied at a time."""
TRIES: Final = 10
"""How often a directory is copied anew because the learner has replaced it meanwhile."""
_COPIED: Final = 2
"""The incarnation of copied items: that of no actor, nor of a process that makes items for itself."""


@dataclass(frozen=True)
class Copied:
    """What a copy holds."""

    opt_steps: int
    items: int


def back_up(run: Path, to: Path) -> Copied:
    """Copy what a resumed run needs, and its policies; ``to`` is whole or not there.

    Args:
        run: the run's directory.
        to: a directory that does not exist yet.

    Raises:
        RunDirectoryError: ``to`` exists or cannot be written, or ``run`` is not the directory of a run that has begun.
        CheckpointError: none of the run's states is whole.
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
    return Copied(opt_steps, items)


def _copy_files(run: Path, to: Path) -> int:
    """Copy all but the replay; the opt step of the state."""
    run_id = identity_of(run).run_id
    for name in ("config.yaml", "run.json", "metrics.csv"):
        shutil.copy(run / name, to / name)
    for name in ("best", "final"):
        if (run / name).exists():
            _copy_newest(partial(_alone, run / name), to)
    _copy_newest(partial(states_in, run), to / "checkpoints")
    found = StateFiles(to / "checkpoints", {"run_id": run_id}, 1, SaveCounts()).newest()
    if found is None:
        raise RunDirectoryError(f"{run}: expected a state of training in checkpoints/, found none")
    opt_steps: int = found[1]["learner"]["moment"]["opt_steps"]
    return opt_steps


def _alone(path: Path) -> list[Path]:
    return [path]


def _copy_newest(candidates: Callable[[], Iterable[Path]], to: Path) -> None:
    """Copy the first of the directories there are, whole.

    A learner replaces such a directory by another of its name, or removes it. So the copy goes through a descriptor of
    the directory, which stays with it under any name, and is made anew if a file is no longer there.
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
    """Copy the items that are whole, in order and under their own numbers; how many there are.

    Where actors overwrite the oldest items faster than they are copied, the copy begins anew with later ones.
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
            copy.close()  # It is whole on whatever host it is opened.
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
