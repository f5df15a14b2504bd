"""Real file systems that are small, full or read-only; mounting them takes root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

_CHUNK: Final = bytes(4096)


class Disk:
    """A file system of its own at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def remount(self, options: str) -> None:
        """With other options, such as ``ro`` or ``size=1m``."""
        _run("mount", "-o", f"remount,{options}", str(self.path))

    def fill(self) -> None:
        """Leave no room, also where some has been given back since the last time."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(_CHUNK):
                pass

    def clear(self) -> None:
        """Leave room again."""
        self._filler.unlink()


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """An empty disk of 64 MiB; skips the test where nothing can be mounted."""
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=64m", "none", str(path))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    try:
        yield Disk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)
