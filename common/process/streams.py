"""The standard streams of a command: stdout has its answers and nothing else, and a reader may leave at any time.

Environments and libraries print to stdout, from Python and from C, and a program that reads a command's JSON must not
find their lines in it. So a command writes its answers to ``answers()``, and while it runs, descriptor 1 leads to
stderr.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_answers: TextIO | None = None


def answers() -> TextIO:
    """The stream of a command's answers: the standard output that its caller gave it."""
    return _answers if _answers is not None else sys.stdout


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """A context in which a command runs: only its answers go to stdout; what users' code prints goes to stderr.

    Writing never fails because a reader has left. The text is lost, and the command goes on.
    """
    global _answers  # noqa: PLW0603 - a process has one standard output
    _open_closed()
    before = _answers
    with contextlib.ExitStack() as stack:
        null = stack.enter_context(Path(os.devnull).open("w"))
        given, errors = sys.stdout or null, sys.stderr or null
        if _leads_to(errors, 2):
            errors = _open(2, errors)
        stack.enter_context(contextlib.redirect_stderr(errors))
        printed = errors
        if _leads_to(given, 1):
            given.flush()
            fd = os.dup(1)
            stack.callback(os.close, fd)
            os.dup2(2, 1)
            stack.callback(os.dup2, fd, 1)
            given, printed = _open(fd, given), _open(1, given)
        stack.enter_context(contextlib.redirect_stdout(printed))
        _answers = given
        try:
            yield
        finally:
            _answers = before
            for stream in (given, printed, errors):
                stream.flush()


def _open_closed() -> None:
    """Open those of the descriptors 0 to 2 that the caller has closed, before a file of ours gets their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, which is ``fd``.


def _leads_to(stream: TextIO, fd: int) -> bool:
    """Whether a stream of Python writes to a descriptor; False if the caller, such as a test, has replaced it."""
    try:
        return stream.fileno() == fd
    except (OSError, ValueError):
        return False


def _open(fd: int, like: TextIO) -> TextIO:
    """A stream that writes each line at once to a descriptor, which stays open after it."""
    return io.TextIOWrapper(
        io.BufferedWriter(_MaybeUnread(fd, "w", closefd=False)),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=True,
    )


class _MaybeUnread(io.FileIO):
    """A file that drops what nobody can read any more: ``head`` has ended, or the terminal was closed."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            is_terminal = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
            if error.errno == errno.EPIPE or (error.errno == errno.EIO and is_terminal):
                return memoryview(data).nbytes
            raise
