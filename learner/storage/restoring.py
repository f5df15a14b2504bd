"""Making a run directory from a mirror, on a host that has nothing of the run."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Final

from common.errors import RunDirectoryError, SchemaMismatchError
from learner.replay.copying import open_copy, unpack
from learner.replay.memory import Layout, ReplayMemory
from learner.replay.recovery import add_cursors
from learner.shared.durable import READ_TRIES, removing_unfinished, sync
from learner.storage.mirror import Mirror, Past, keep_past
from learner.storage.mirrored_state import MirroredState

log = logging.getLogger(__name__)
LEFT: Final = frozenset({"lock", "shared", "config.yaml"})
"""What a start leaves in a directory before a run has begun there."""


def has_run(mirror: Mirror) -> bool:
    """Whether there is a run in a mirror.

    Raises:
        RunDirectoryError: the mirror cannot be reached.
    """
    try:
        return mirror.find_newest() is not None
    except OSError as error:
        raise RunDirectoryError(f"{mirror.url}: the mirror cannot be read: {error}") from error


def restore(mirror: Mirror, to: Path) -> None:
    """Claim a mirror, and make the run's directory from its newest state; a kill leaves no incomplete ``to``.

    The claim comes first: from then on a learner that still runs acknowledges no row that the state does not have, if
    it acknowledges what is mirrored.

    Args:
        mirror: of the run.
        to: a directory that does not exist yet, or in which no run has begun.

    Raises:
        RunDirectoryError: there is no run in the mirror, it cannot be read, or ``to`` cannot be written.
        TakenOverError: another learner has claimed the mirror meanwhile.
    """
    strange = [path.name for path in to.iterdir() if path.name not in LEFT] if to.exists() else []
    if strange:
        raise RunDirectoryError(f"{to}: expected a new run directory to restore to, found {strange[0]}")
    try:
        found = mirror.find_newest()
        if found is None:
            raise RunDirectoryError(f"{mirror.url}: expected the mirror of a run, found no whole state of one")
        newest = _claim(mirror, found)
        for _ in range(READ_TRIES):
            assert newest is not None, "a newer state comes before an older one is removed"
            try:
                _restore_state(mirror, newest, to)
                return
            except FileNotFoundError as error:  # Its former owner has joined segments, and a newer state names them.
                log.warning("%s: %s; the newest state is read again", mirror.url, error)
                newest = mirror.find_newest()
        raise RunDirectoryError(f"{mirror.url}: the run cannot be restored: objects of its newest states are missing")
    except (OSError, ValueError, LookupError, TypeError, SchemaMismatchError) as error:
        raise RunDirectoryError(f"{mirror.url}: cannot be restored to {to}: {error}") from error


def _claim(mirror: Mirror, found: MirroredState) -> MirroredState | None:
    try:
        # There is no directory yet, so the run goes on from whatever state is the newest one.
        return mirror.claim(found.run_id, Past(sys.maxsize), lambda _: None)
    except OSError as error:
        raise RunDirectoryError(
            f"{mirror.url}: cannot be claimed: {error}; a learner writes to the mirror that it goes on from: if there "
            "is no room, or it can only be read, copy it, and go on from the copy (--resume file:///COPY)"
        ) from error


def _restore_state(mirror: Mirror, state: MirroredState, to: Path) -> None:
    began, draft = time.monotonic(), to.with_name(f".{to.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    with removing_unfinished(draft):
        for path, name in state.files.items():
            place = draft / _require_inside(path)
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with place.open("wb") as file:
                mirror.get(name, file)
        (draft / "shared").mkdir(mode=0o700, exist_ok=True)
        rows = _restore_rows(mirror, state, draft / "shared" / "replay")
        keep_past(draft, Past(mirror.epoch), restored=True)
        (draft / "lock").touch(0o600)
        for written in draft.rglob("*"):
            sync(written)
        mirror.require_owner()  # A large run takes minutes, in which another learner may have come.
        shutil.rmtree(to, ignore_errors=True)  # It has no more than a start leaves that was killed.
        draft.rename(to)
        sync(to.parent)
    log.warning(
        "%s: restored from %s, as the run was %s, in %.1f s: %d rows up to index %d. Rows that were stored later are "
        "lost; actors that had them acknowledged say how many",
        *(to, mirror.url, _tell_age(time.time() - state.at), time.monotonic() - began, rows, _find_end(state)),
    )


def _tell_age(seconds: float) -> str:
    if seconds >= 0:
        return f"{seconds:.1f} s ago"
    return f"{-seconds:.1f} s after now (this host's clock is behind the clock of its host)"


def _find_end(state: MirroredState) -> int:
    """The absolute index after the newest row of a state."""
    return state.segments[-1].end if state.segments else int(state.layout["began"])


def _restore_rows(mirror: Mirror, state: MirroredState, to: Path) -> int:
    """Make the replay of a state; return how many rows count."""
    layout = Layout.of(state.layout, mirror.url)
    segments, watermark = state.segments, state.watermark
    began, steps = (
        (segments[0].start, segments[-1].steps_end - sum(segment.steps for segment in segments))
        if segments
        else (watermark.committed, watermark.steps)
    )
    memory = ReplayMemory(
        to, layout.schema, layout.capacity, create=True, slack=layout.slack, began=began, steps_began=steps
    )
    writer = open_copy(memory, (cursor[0] for cursor in watermark.cursors))
    for segment in segments:
        for (items, previous), batch in unpack(layout.schema, mirror.get_bytes(segment.name)):
            writer.copy(items, previous, batch)
    add_cursors(memory, watermark.cursors)
    memory.close()  # All its rows are whole, so no checksum is compared while these files stay on this host.
    return len(memory)


def _require_inside(path: str) -> PurePosixPath:
    """Check that the path of a mirrored file leads into the run directory."""
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts:
        raise ValueError(f"expected the path of a file in a run directory, found {path!a}")
    return found
