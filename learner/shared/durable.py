"""Writing files and directories so that a kill or a power cut leaves them whole, or as they were before."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from common.errors import CheckpointError

log = logging.getLogger(__name__)
WITHOUT_CHECKPOINT: Final = "training goes on without this checkpoint"


@contextmanager
def logging_write_errors(consequence: str) -> Iterator[None]:
    """Log an error of writing, such as on a full disk, and go on: a write error does not end a run.

    Args:
        consequence: the beginning of the message: which file is missing now, or which work goes on without it.
    """
    try:
        yield
    except (OSError, CheckpointError) as error:
        log.error("%s: %s", consequence, error)


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
        OSError: it cannot be done; the former directory is still in its place.
    """
    old = old_of(target)
    try:
        _put_back(old, target)
        for file in draft.iterdir():
            sync(file)
        sync(draft)
        if target.exists():
            target.rename(old)
        draft.rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError:
        _put_back(old, target)
        raise


def clean_up(directory: Path) -> None:
    """For directories named by numbers: remove the drafts that a kill has left, and put back former directories.

    Raises:
        OSError: a former directory cannot be put back.
    """
    for old in directory.glob(".[0-9]*.old"):
        _put_back(old, old.with_name(old.stem[1:]))
    for draft in directory.glob(".[0-9]*.part"):
        shutil.rmtree(draft, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all, and sync it."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, and sync it."""
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
    return target.with_name(f".{target.name}.old")


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
