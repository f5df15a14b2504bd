"""Datasets may come from strangers, so nothing outside the directory of a dataset is opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from common.errors import DatasetError


def check_links(directory: Path, *parts: str) -> None:
    """Check that no link leads out of a dataset's directory, and that no file would make its reader wait for ever.

    The directory itself may be a link: the user named it. A snapshot in the cache of Hugging Face's hub holds links to
    the ``blobs`` beside it, which belong to the dataset.

    Args:
        directory: of the dataset; nothing is checked if it is no directory.
        parts: the files and directories in it that are read; without any, all of them.

    Raises:
        DatasetError: naming the link and where it leads, or the pipe or device.
    """
    root = directory.resolve()
    if root.parent.name == "snapshots":
        root = root.parents[1]
    for path in _walk([directory / part for part in parts] or [directory]):
        _require_end(path)
        target = path.resolve() if path.is_symlink() and path != directory else root
        if not target.is_relative_to(root):
            raise DatasetError(
                f"{path}: expected a file inside the directory of the dataset, found a link to {target}; if you trust "
                f"the dataset, copy it with its files: cp -rL {directory} COPY"
            )
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DatasetError(f"{path}: expected a file, found a pipe or a device")


def _require_end(path: Path) -> None:
    """Check that links lead to an end. From Python 3.13 on, ``resolve`` says nothing of a circle."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DatasetError(f"{path}: expected a link to a file, found one that leads in a circle") from error


def _walk(paths: list[Path]) -> Iterator[Path]:
    """These paths, and all that lies below them. Links are not followed: what they lead to is below, or outside."""
    for path in paths:
        yield path
        for place, directories, files in os.walk(path):
            yield from (Path(place, name) for name in (*directories, *files))
