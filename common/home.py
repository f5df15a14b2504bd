"""Paths as users write them: ``~/runs`` lies in the user's home, as in a shell."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from common.errors import ConfigError, PluginError

_UNKNOWN: Final = ("home directory", "getpwuid()", "No username")
"""What the errors of Python's ``pathlib``, ``pwd`` and ``getpass`` say, if they know no home or no name."""


def expand_home(path: str | Path) -> Path:
    """A path, with ``~`` or ``~name`` at its beginning replaced by the home of this user or of that one.

    Raises:
        ValueError: it is no path, or no file can have it, or the home is not known.
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"expected a path, found {path!r}")
    try:
        found = Path(path).expanduser()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found.stat()  # Links are followed, as they are when the path is opened.
        return found
    except OSError as error:  # Path.exists, with which most functions begin, raises it too.
        raise ValueError(f"expected a path, found '{path!s:.60}…': {error.strerror}") from error
    except RuntimeError as error:
        raise ValueError(f"expected a path in a known home, found '{path}': set HOME, or write it out") from error


def read_regular(path: Path) -> bytes:
    """The bytes of a file that a setting names. A pipe or a device is not waited for.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # Otherwise the opening of a pipe waits for somebody who writes.
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file, found a directory, a pipe or a device", str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def expand_path(path: str | Path, where: str) -> Path:
    """As ``expand_home``, for a path that is used where it is read.

    Raises:
        ConfigError: it is no path, or the home is not known.
    """
    try:
        return expand_home(path)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


@contextlib.contextmanager
def naming_missing_home(what: str) -> Iterator[None]:
    """A context in which a library may ask for this user's home or name, which a container's user may not have.

    Raises:
        PluginError: Python knows no such home or name.
    """
    try:
        yield
    except (KeyError, OSError, RuntimeError) as error:  # Since Python 3.13, getpass raises OSError.
        if not any(text in str(error) for text in _UNKNOWN):
            raise
        raise PluginError(f"{what}: {str(error).rstrip('.')}; set HOME to a directory, and USER to a name") from error
