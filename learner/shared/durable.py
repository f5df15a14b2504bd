"""Files and directories that outlast a kill and a power cut: whole, or as they were before."""

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
def tolerated(consequence: str) -> Iterator[None]:
    """Log what cannot be written, such as on a full disk, with what comes of it: no reason to end a run."""
    try:
        yield
    except (OSError, CheckpointError) as error:
        log.error("%s: %s", consequence, error)


@contextmanager
def swept(draft: Path) -> Iterator[Path]:
    """Remove a draft that does not come to its end: a full disk must not be kept full by it."""
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def put_in_place(draft: Path, target: Path) -> None:
    """Sync the files of ``draft`` and make it the directory ``target``, whatever was there before.

    A kill leaves the new one or the one before, at worst under ``old_of(target)``.

    Raises:
        OSError: it cannot be done; what was there before is still there.
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


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; from now on it lasts."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    sync(part)
    part.rename(path)
    sync(path.parent)


def old_of(target: Path) -> Path:
    """Where a directory waits while another takes its place."""
    return target.with_name(f".{target.name}.old")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put_back(old: Path, target: Path) -> None:
    """Undo the first half of an exchange that was cut off; sweep up after one that was not."""
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)
