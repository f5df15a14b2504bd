"""The standard streams of a command: stdout has its answers and nothing else, and a reader may leave at any time.

Environments and libraries print to stdout, from Python and from C, and a program that reads a command's JSON must not
find their lines in it. So a command writes its answers to ``answers()``, and while it runs, descriptor 1 leads to
stderr.

A reader of stderr may also stop reading: a log collector hangs, a terminal is held by Ctrl-S. No thread of ours waits
for it. A bounded number of bytes waits instead, then lines are left out and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import json
import math
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from common.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WAITING_BYTES: Final = 1 << 20
"""The most text that waits for a reader of stderr: some 5,000 lines."""
LAST_SECONDS: Final = 1.0
"""How long a process that ends waits for the reader of its output."""
_LINGER_SECONDS: Final = 1.0
"""How long the thread that writes stays after its last text."""
_answers: TextIO | None = None


def answers() -> TextIO:
    """The stream of a command's answers: the standard output that its caller gave it."""
    return _answers if _answers is not None else sys.stdout


def answer_json(value: Any) -> None:
    """Write an answer as a line of JSON, which has no NaN and infinity: they are "NaN", "Infinity" and "-Infinity".

    These are the texts of protobuf's JSON (https://protobuf.dev/programming-guides/json/).
    """
    answers().write(json.dumps(_without_odd_numbers(value), allow_nan=False) + "\n")


def _without_odd_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_odd_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_odd_numbers(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """A context in which a command runs: only its answers go to stdout; what users' code prints goes to stderr.

    Writing never fails because a reader has left, and writing to stderr not because its disk is full. The text is lost,
    and the command goes on. Writing to stderr never waits for a reader; writing answers does, until a signal asks the
    process to end (see ``hurry``). Answers that a disk has no room for raise ``ConfigError``, once.
    """
    global _answers  # noqa: PLW0603 - a process has one standard output
    _open_closed()
    before = _answers
    with contextlib.ExitStack() as stack:
        null = stack.enter_context(Path(os.devnull).open("w"))
        given, errors = sys.stdout or null, sys.stderr or null
        if _leads_to(errors, 2):
            errors = _open(2, errors, _Unwaiting)
            stack.callback(_finish, errors)
        stack.enter_context(contextlib.redirect_stderr(errors))
        printed = errors
        # Answers keep the pipe of stdout under another number. Number 1 leads to stderr, also for libraries in C.
        if _leads_to(given, 1):
            given.flush()
            fd = os.dup(1)
            stack.callback(os.close, fd)
            os.dup2(2, 1)
            stack.callback(os.dup2, fd, 1)
            given, printed = _open(fd, given, _Answers), _open(1, given, _Unwaiting)
            stack.callback(_finish, printed)
        stack.enter_context(contextlib.redirect_stdout(printed))
        _answers = given
        try:
            yield
        finally:
            _answers = before
            for stream in (given, printed, errors):
                stream.flush()


def hurry() -> None:
    """Wait for a reader of answers no longer than ``LAST_SECONDS`` from now on: a signal asks this process to end."""
    raw = _raw(_answers)
    if isinstance(raw, _Answers):
        raw.is_hurried = True


def unblock_stderr(notice: Callable[[int], str]) -> None:
    """Have no thread of this process wait for the reader of stderr from now on.

    Args:
        notice: makes the line that says how many lines were left out, since the log may be for machines.
    """
    if not isinstance(_raw(sys.stderr), _Unwaiting):
        if sys.stderr is None or not _leads_to(sys.stderr, 2):
            return
        sys.stderr = _open(2, sys.stderr, _Unwaiting)
        atexit.register(_finish, sys.stderr)
    raw = _raw(sys.stderr)
    assert isinstance(raw, _Unwaiting)
    raw.notice = notice


def keep_stdout() -> None:
    """Keep stdout open if users' code closes it: a child sends its events there."""
    if _leads_to(sys.stdout, 1):
        file = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        at_once = sys.stdout.line_buffering or getattr(sys.stdout, "write_through", False)  # As by PYTHONUNBUFFERED.
        sys.stdout = _Kept(file, sys.stdout.encoding, sys.stdout.errors, line_buffering=bool(at_once))


def _raw(stream: TextIO | None) -> object:
    """The file under a stream; None under a stream that the caller, such as a test, has replaced."""
    return getattr(getattr(stream, "buffer", None), "raw", None)


def _finish(stream: TextIO) -> None:
    """Give a stream's reader a last time to read what still waits."""
    raw = _raw(stream)
    assert isinstance(raw, _Unwaiting)
    raw.finish()


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


def _open(fd: int, like: TextIO, file: type[_MaybeUnread]) -> TextIO:
    """A stream that writes each line at once to a descriptor, which stays open after it."""
    return _Kept(
        io.BufferedWriter(file(fd, "w", closefd=False)),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=True,
    )


class _Kept(io.TextIOWrapper):
    """A stream that users' code cannot close: this process writes to it until its end."""

    def close(self) -> None:
        self.flush()


class _MaybeUnread(io.FileIO):
    """A file that drops what nobody can read any more: ``head`` has ended, or the terminal was closed."""

    _lost: tuple[int, ...] = (errno.EPIPE,)
    """Errors after which a text is dropped."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            is_terminal = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
            if error.errno in self._lost or (error.errno == errno.EIO and is_terminal):
                return memoryview(data).nbytes
            raise


class _Answers(_MaybeUnread):
    """A file whose reader may take its time, until this process has to end.

    Raises:
        ConfigError: the answers cannot be written, for example because the disk is full. They are dropped from then on.
    """

    is_hurried = False
    _is_given_up = _is_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self._is_failed:
            return memoryview(data).nbytes
        room = _poll_for_room(self.fileno())
        while not room.poll(0 if self._is_given_up else 1000 * LAST_SECONDS):
            if self.is_hurried:
                self._is_given_up = True
                return memoryview(data).nbytes
        try:
            return super().write(memoryview(data).cast("B")[: select.PIPE_BUF])
        except OSError as error:
            self._is_failed = True
            raise ConfigError(f"standard output: cannot be written: {error.strerror}") from error


class _Unwaiting(_MaybeUnread):
    """A file of which no writer waits for the reader.

    A writer writes as far as there is room. The rest, and all text after it, waits for a thread that writes it in
    order; the thread ends when nothing waits any more. If too much waits, lines are left out, and the next text that
    has room comes after a line that says how many. Text for which a disk has no room is dropped.
    """

    _lost = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

    def __init__(self, fd: int, mode: str, closefd: bool) -> None:
        super().__init__(fd, mode, closefd=closefd)
        self.notice: Callable[[int], str] = "{} lines were left out: nobody read them in time".format
        self._room = _poll_for_room(fd)
        # A pipe with room takes a piece of PIPE_BUF bytes at once. A terminal may have less room, so only the thread
        # writes to it.
        self._can_tell_room = not os.isatty(fd)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes, self._left_out, self._is_finished = 0, 0, False
        self._thread: threading.Thread | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        text = bytes(data)
        if os.getpid() != self._owner:  # A fork has no such thread, and a lock that may never be released.
            return super().write(text)
        with self._changed:
            rest = memoryview(text)  # Its slices copy nothing.
            if (self._can_tell_room or self._is_finished) and not (self._waiting or self._left_out):
                while rest and self._room.poll(0):
                    rest = rest[super().write(rest[: select.PIPE_BUF]) or 0 :]
            if rest and not self._is_finished:
                self._put(bytes(rest))
        return len(text)

    def _put(self, text: bytes) -> None:
        """Have a text wait for the thread, or count its lines as left out."""
        if self._bytes >= WAITING_BYTES:
            self._left_out += text.count(b"\n")
            return
        self._tell_left_out()
        self._append(text)

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._append(f"{self.notice(self._left_out)}\n".encode())
            self._left_out = 0

    def _append(self, text: bytes) -> None:
        self._waiting.append(text)
        self._bytes += len(text)
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_waiting, name="stderr", daemon=True)
            self._thread.start()

    def _write_waiting(self) -> None:
        """Write what waits. A text waits until it is written, so that no other text overtakes it."""
        room = _poll_for_room(self.fileno())
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, _LINGER_SECONDS):
                    self._thread = None
                    return
                text = self._waiting[0]
            rest = memoryview(text)
            # After ``finish``, the descriptor may lead elsewhere. A write to one that does not block may return None.
            while rest and not self._is_finished:
                if room.poll(1000 * _LINGER_SECONDS):
                    rest = rest[super().write(rest) or 0 :]
            with self._changed:
                if self._waiting and self._waiting[0] is text:  # Otherwise ``finish`` has given it up.
                    self._waiting.popleft()
                    self._bytes -= len(text)
                    self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is written, for at most ``LAST_SECONDS``, and give up the rest. No later text waits."""
        with self._changed:
            self._tell_left_out()
            self._changed.wait_for(lambda: not self._waiting, LAST_SECONDS)
            self._waiting.clear()
            self._is_finished = True


def _poll_for_room(fd: int) -> select.poll:
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return room
