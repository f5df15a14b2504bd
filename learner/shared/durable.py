"""Writing files and directories so that a kill or a power cut leaves them whole, or as they were before.

``read_whole`` reads a directory that another process may replace with ``put_in_place``, or remove with ``remove``.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from common.errors import CheckpointError, ConfigError, RunDirectoryError
from common.process.log import LogThrottle

log = logging.getLogger(__name__)
WITHOUT_CHECKPOINT: Final = "training goes on without this checkpoint"
READ_TRIES: Final = 10
"""A directory is read this many times at most, since another process may replace it during each reading."""
ResultT = TypeVar("ResultT")


@contextmanager
def logging_write_errors(consequence: str, throttle: LogThrottle | None = None) -> Iterator[None]:
    """Log an error of writing, such as on a full disk, and go on: a write error does not end a run.

    Args:
        consequence: the beginning of the message: which file is missing now, or which work goes on without it.
        throttle: says whether an error is logged, of work that is done again and again; None: each error is.
    """
    try:
        yield
    except (OSError, CheckpointError, ConfigError) as error:  # ConfigError: the file has become one of another kind.
        missed = throttle.due() if throttle is not None else 0
        if missed is not None:
            log.error("%s: %s%s", consequence, error, f" ({missed} more before it)" if missed else "")


@contextmanager
def naming_write_errors(path: Path) -> Iterator[None]:
    """A context for everything that writes to the directory of a run or of a sweep; a full disk is no bug.

    Raises:
        RunDirectoryError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def removing_unfinished(draft: Path) -> Iterator[Path]:
    """Remove the directory ``draft`` if this context raises: on a full disk a draft would keep the disk full."""
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def put_in_place(draft: Path, target: Path) -> None:
    """Sync the directory ``draft`` and rename it to ``target``, in the place of a directory of that name.

    A kill leaves the new directory or the former one; the former one is under ``target`` or under ``old_of(target)``.

    Raises:
        OSError: it cannot be done; the former directory is in its place again.
    """
    old = old_of(target)
    _put_back(old, target)
    for file in draft.iterdir():
        sync(file)
    sync(draft)
    try:
        if target.exists():
            target.rename(old)
        draft.rename(target)
        sync(target.parent)
    except OSError:
        if not draft.exists():
            target.rename(draft)
        _put_back(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove(target: Path) -> None:
    """Remove a directory that other processes may be reading: its name goes first, so no reader finds half of it.

    Raises:
        OSError: it cannot be removed.
    """
    shutil.rmtree(old_of(target), ignore_errors=True)
    nameless = target.with_name(f".{target.name}.part")  # ``clean_up`` removes it after a kill.
    target.rename(nameless)
    shutil.rmtree(nameless)


def locate(target: Path) -> Path | None:
    """Where the directory that was put at ``target`` is now; None if there is none."""
    with _holding(target) as found:
        return None if found is None else found.path


def read_whole(target: Path, read: Callable[[Path], ResultT]) -> ResultT:
    """Read a directory that another process may replace or remove meanwhile: the former one, or the new one, whole.

    The process that replaces the directory renames it before it removes any file of it. So if the directory is still
    in its place after the reading, all its files were there. Otherwise the directory is read again. It is held open
    meanwhile, or a new directory could get the number of its inode and be taken for it.

    Args:
        target: the directory as ``put_in_place`` was called with it.
        read: reads the directory at the path that it is given: ``target``, or ``old_of(target)`` between two renames.
            If there is no directory, it is called with ``target``, and raises or says so.

    Raises:
        CheckpointError: the directory was replaced during each of ``READ_TRIES`` readings.
        Exception: ``read`` raised it, and the directory was not replaced meanwhile.
    """
    absent = 0
    for _ in range(READ_TRIES):
        with _holding(target) as before:
            try:
                result = read(target if before is None else before.path)
            except Exception:
                if _is_there(target, before):
                    raise
                continue
            if before is not None and _is_there(target, before):
                return result
            absent += before is None
    if absent == READ_TRIES:
        return result  # Once alone, a directory could have come and gone between the two looks.
    raise CheckpointError(f"{target}: it was replaced during each of {READ_TRIES} attempts to read it; try again")


def has_file(directory: Path, name: str) -> bool:
    """Whether a directory that another process may replace meanwhile has a file of this name."""
    return read_whole(directory, lambda place: (place / name).exists())


class _Held(NamedTuple):
    """A directory that is held open: its path, and the numbers that no other directory has meanwhile."""

    path: Path
    device: int
    inode: int


@contextmanager
def _holding(target: Path) -> Iterator[_Held | None]:
    """Hold the directory at ``target`` open, or the former one between two renames; None without both.

    The third look is for a process that finishes both renames between the first look and the second.
    """
    for path in (target, old_of(target), target):
        try:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            found = os.fstat(fd)
            yield _Held(path, found.st_dev, found.st_ino)
        finally:
            os.close(fd)
        return
    yield None


def _is_there(target: Path, held: _Held | None) -> bool:
    """Whether a directory that is held open is still in its place; for None, whether there is still none."""
    with _holding(target) as now:
        return now == held


def clean_up(directory: Path) -> None:
    """For directories named by numbers: remove the drafts that a kill has left, and put back former directories.

    Raises:
        OSError: a former directory cannot be put back.
    """
    for old in directory.glob(".[0-9]*.old"):
        _put_back(old, target_of(old))
    for draft in directory.glob(".[0-9]*.part"):
        shutil.rmtree(draft, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all, and sync it."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, and sync it.

    Raises:
        OSError: it cannot be written; or there is a device or a pipe, such as /dev/stdout, which root would replace.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "expected a file, found a device or a pipe", str(path))
    part = path.parent / f".{path.name}.part"
    try:
        part.write_bytes(content)
        sync(part)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def old_of(target: Path) -> Path:
    """The path of the former directory while ``put_in_place`` puts another directory at ``target``."""
    return target.parent / f".{target.name}.old"


def target_of(old: Path) -> Path:
    """The directory whose former one has the path ``old``: ``old_of(target_of(old)) == old``."""
    return old.with_name(old.stem[1:])


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a directory, are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put_back(old: Path, target: Path) -> None:
    """Put the former directory back if a kill came before the new one was in its place; otherwise remove it."""
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)
