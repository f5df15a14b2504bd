"""Runs a command of ours for a caller on another host, for as long as this caller is there.

If an ssh connection without a terminal ends, the command that it had started goes on. So ``crossborder-launch`` starts
every command as ``python -m crossborder.launching.tether DIRECTORY COMMAND WORDS…`` and holds its standard input: it
writes the byte ``BEAT`` every ``BEAT_SECONDS``, and the byte ``END`` to end the command. The command runs in this
process. It gets SIGTERM, and so ends in order, in three cases: after ``END``, when standard input closes, and when no
byte has come for ``SILENT_SECONDS``, because a caller whose power or network has failed does not close it. If the
command still runs ``GRACE_SECONDS`` later, it is killed.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from common.errors import ConfigError
from common.process.clocks import Deadline
from common.process.command import tell_error
from common.process.ending import end_in_time
from common.process.signals import NOTICE_SECONDS
from common.process.standard_streams import answers
from crossborder import commands

BEAT: Final = b"."
END: Final = b"!"
BEAT_SECONDS: Final = NOTICE_SECONDS
"""The main thread of the caller waits between two beats, and may see a signal only then."""
SILENT_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 120.0
"""A learner needs less time to receive its actors' last rows and to save."""


class Tether:
    """Reads the caller's bytes, and ends this process when the caller says so or falls silent.

    Args:
        fd: the descriptor that is read.
        silent_seconds: the caller counts as gone when nothing has been read for this time.
        grace_seconds: how long the command may take to end.
    """

    def __init__(self, fd: int, silent_seconds: float = SILENT_SECONDS, grace_seconds: float = GRACE_SECONDS) -> None:
        self._fd, self._silent_seconds, self._grace_seconds = fd, silent_seconds, grace_seconds
        self._end: Deadline | None = None
        """When the command is killed; None until it was asked to end."""

    def hold(self) -> None:
        """Never return: this process ends while this thread waits, or this thread kills it."""
        while heard := self._hear():
            if END in heard:
                self._ask()
        _drop_output()  # First: nobody reads the output any more, and the command must not fail at writing.
        self._ask()
        assert self._end is not None
        threading.Event().wait(self._end.remaining())
        os.kill(os.getpid(), signal.SIGKILL)

    def _hear(self) -> bytes:
        """The caller's next bytes; empty if it is gone or silent, or if the command does not end in time."""
        seconds = min(self._silent_seconds, self._end.remaining() if self._end is not None else math.inf)
        ready, _, _ = select.select([self._fd], [], [], seconds)
        try:
            return os.read(self._fd, 4096) if ready else b""
        except ConnectionResetError:  # Some sshd use a socket: the caller ended before it had read all output.
            return b""

    def _ask(self) -> None:
        """Ask the command to end; once, since a second signal would end it at once and out of order."""
        if self._end is None:
            self._end = Deadline(self._grace_seconds)
            os.kill(os.getpid(), signal.SIGTERM)


def _drop_output() -> None:
    """Let all that this process and its children write from now on be lost."""
    sink = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2, answers().fileno()):
        os.dup2(sink, fd)


def _take_stdin() -> int:
    """A descriptor of standard input that only this process has; it and its children now find standard input empty.

    Otherwise a program that an environment starts could read the caller's bytes.
    """
    taken = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return taken


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def run(directory: str, name: str, words: Sequence[str]) -> int:
    """Run a command in a directory; return its exit code."""
    command = commands.COMMANDS.get(name)
    if command is None:
        return tell_error(name, ConfigError(f"expected a command of crossborder, found '{name}'"), "json")
    try:
        os.chdir(Path(directory).expanduser())
    except OSError as error:
        return tell_error(name, ConfigError(f"directory: expected one that can be entered: {error}"), "json")
    # This holds until the command handles signals. Without it, ssh could not tell the end from a broken connection.
    signal.signal(signal.SIGTERM, _end_at_once)
    threading.Thread(target=Tether(_take_stdin()).hold, name="tether", daemon=True).start()
    code: int = command(list(words))
    return code


if __name__ == "__main__":
    sys.exit(end_in_time(partial(run, sys.argv[1], sys.argv[2], sys.argv[3:])))
