"""Starts child processes, reads their events, and ends them in time.

A child gets JSON lines on stdin, the first at its start. It ends itself when its stdin closes, so no child outlives its
parent. It writes events on stdout (see ``say``) and its log on stderr. The parent logs all other lines there, such as
the prints of users' parts. A child runs in a separate session, so Ctrl-C reaches only the parent. The parent then ends
its children in order, together with the processes that they have started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from common.errors import ChildFailedError, CrossborderError, EnvHungError, LearnerUnreachableError, by_exit_code
from common.process.clocks import Deadline
from common.process.log import log_fault, relog, setup_logging
from common.process.signals import leave_to_parent
from common.process.standard_streams import keep_stdout
from common.system import find_exit_code, wait_for_end

log = logging.getLogger(__name__)
_ARENA_MAX: Final = "MALLOC_ARENA_MAX"
KEEP_BUFFERS = {
    # By default glibc gives large buffers back to the kernel, and the next large buffer costs page faults. If it keeps
    # them, a model of 7 MB is assembled and loaded in 6 ms instead of 25, and messages of 1 MiB pass twice as fast.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
    # Each arena keeps its own. By default gRPC's threads spread messages over 16 arenas on two cores, and after a while
    # at full speed ingest kept 100 MB, where 50 suffice.
    _ARENA_MAX: "2",
}
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""The numbers of these settings for mallopt(3)."""


def keep_buffers(*, is_child: bool = False) -> None:
    """Have this process keep freed memory from now on, as ``KEEP_BUFFERS`` does for children; needs glibc.

    Args:
        is_child: have as few arenas as ``KEEP_BUFFERS`` says, unless the environment says how many. The process with
            the agent keeps them all: its threads should not share locks.
    """
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        if is_child and _ARENA_MAX not in os.environ:
            libc.mallopt(_M_ARENA_MAX, int(KEEP_BUFFERS[_ARENA_MAX]))


Event = dict[str, Any]
N_STREAMS: Final = 3
"""The descriptors that come with a request to fork: stdin, stdout and stderr."""
_MARK = "crossborder-event"
READ_SECONDS: Final = 5.0
"""The time in which all that a child has written is read after its end, also on a busy host. A process that the child
has started may hold the pipes for longer."""
KILL_SECONDS: Final = 10.0
"""The time in which the kernel ends a process that was killed."""


def read_boot() -> dict[str, Any]:
    """Wait for the boot line, in a child; end the process if the parent ends without one."""
    keep_stdout()
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    boot: dict[str, Any] = json.loads(line)
    return boot


def wait_for_hang_up(seconds: float | None = None) -> bool:
    """Wait in a child until its parent has closed the other end of stdin; return False if it has not in ``seconds``."""
    hang_up = select.poll()
    hang_up.register(sys.stdin.fileno(), 0)  # No event is asked for, so poll reports only the hang-up, and no lines.
    return bool(hang_up.poll(None if seconds is None else 1000 * seconds))


def on_hang_up(act: Callable[[], None]) -> None:
    """In a child, have a thread wait until the parent has closed the other end of stdin, and then call ``act``."""

    def wait() -> None:
        wait_for_hang_up()
        act()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def serve_parent(serve: Callable[[dict[str, Any]], None], failure: str) -> int:
    """Run a child that serves its parent, with the boot line, and ends when the parent says so; return its exit code.

    Any error but ours is logged under the words of ``failure``.
    """
    leave_to_parent()
    setup_logging(form="json")
    try:
        serve(read_boot())
    except CrossborderError as error:
        return say_error(error)
    except Exception:
        log.exception(failure)
        return 1
    return 0


def say(event: Event) -> None:
    """Send an event from a child to its parent, which both know the keys of; ``error`` is reserved."""
    # The line break before it ends a line that a user's part has left open, as ``print(".", end="")`` does.
    sys.stdout.write(f"\n{json.dumps({_MARK: event})}\n")
    sys.stdout.flush()


def say_error(error: CrossborderError) -> int:
    """Tell the parent why this child ends; return the exit code to end with."""
    log_fault(error)
    say({"error": str(error), "exit_code": error.exit_code})
    return error.exit_code


def _event_in(line: str) -> Event | None:
    """The event in a line of stdout, or None if the line is something else that was printed."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value[_MARK] if isinstance(value, dict) and value.keys() == {_MARK} else None


class Forked:
    """A process that was forked, with those members of ``subprocess.Popen`` that ``Child`` uses.

    Args:
        fork: forks it, with the descriptors of its ends of three pipes: stdin, stdout and stderr; returns its id.
        find_code: its exit code by its id, or None while it runs; releases its id with the code if the second argument
            says so, and is not called after that.
    """

    def __init__(self, fork: Callable[[Sequence[int]], int], find_code: Callable[[int, bool], int | None]) -> None:
        fds = list[int]()
        try:
            for _ in range(N_STREAMS):
                fds += os.pipe()
            its_stdin, stdin, stdout, its_stdout, stderr, its_stderr = fds
            self.pid: int = fork((its_stdin, its_stdout, its_stderr))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        for fd in (its_stdin, its_stdout, its_stderr):
            os.close(fd)
        self.returncode: int | None = None
        self._find_code = find_code
        # Once its id is released, nobody may ask for its code: the supervisor may look while another thread ends it.
        self._lock = threading.Lock()
        self.stdin: IO[str] | None = open(stdin, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - a descriptor, which ``Child`` closes
        self.stdout: IO[str] | None
        self.stderr: IO[str] | None
        self.stdout, self.stderr = (
            open(fd, encoding="utf-8", errors="replace")  # noqa: PTH123, SIM115 - the same
            for fd in (stdout, stderr)
        )

    def find_exit_code(self) -> int | None:
        """The exit code, or None while it runs; it keeps its process id until ``wait``."""
        return self._ask_code(releases=False)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended, release its process id, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        deadline = Deadline(timeout)
        while (code := self._ask_code(releases=True)) is None:
            if deadline.passed():
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            wait_for_end(self.pid, deadline.remaining())
        return code

    def _ask_code(self, *, releases: bool) -> int | None:
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            code = self._find_code(self.pid, releases)
            if releases:
                self.returncode = code
            return code


class Child:
    """One running child process, ``python -m module``.

    Args:
        name: the child's name in logs.
        module: the module to run.
        boot: the first JSON line on the child's stdin; None: it gets none.
        pass_fds: file descriptors that the child inherits.
        env: environment variables that are added to those of this process.
        arguments: words after the module.
        directory: in which the child starts; None: that of this process, which an environment may have changed.
        fork: makes the process by a fork (see ``common.process.fork_server``); None: Python is started.
    """

    def __init__(
        self,
        name: str,
        module: str,
        boot: Mapping[str, Any] | None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        *,
        arguments: Sequence[str] = (),
        directory: Path | None = None,
        fork: Callable[[], Forked] | None = None,
    ) -> None:
        self.name = name
        self.events: queue.Queue[Event] = queue.Queue(maxsize=64)
        self._reported: CrossborderError | None = None
        self._process: Forked | subprocess.Popen[str]
        if fork is not None:
            self._process = forked = fork()
            self._find_exit_code = forked.find_exit_code
        else:
            self._process = popen = subprocess.Popen(
                # -P: the current directory may hold a package of our name.
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                pass_fds=pass_fds,
                env={**KEEP_BUFFERS, **os.environ, **(env or {})},
                cwd=directory,
                start_new_session=True,
            )
            self._find_exit_code = partial(find_exit_code, popen)
        assert self._process.stdin is not None
        self._threads = [
            threading.Thread(target=pump, name=f"{name}-{pump.__name__}", daemon=True)
            for pump in (self._pump_stdout, self._pump_stderr)
        ]
        for thread in self._threads:
            thread.start()
        if boot is not None:
            self.tell(boot)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one JSON line; logs a warning if the child has ended."""
        assert self._process.stdin is not None
        line = json.dumps(message) + "\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # ValueError: the pipe is closed on our side.
            log.warning("%s has ended: a message to it is lost", self.name)

    def _pump_stdout(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._take(line)

    def _take(self, line: str) -> None:
        """Take a line of stdout: an event, or text, which is logged."""
        event = _event_in(line)
        if event is None:
            if line := line.rstrip():
                logging.getLogger(self.name).info("%s", line)
        elif "error" in event:
            self._reported = by_exit_code(event["exit_code"], event["error"])
        elif self.events.full():
            log.error("%s sends events faster than they are read, one is dropped: %s", self.name, event)
        else:
            self.events.put_nowait(event)

    def _pump_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                relog(self.name, line.rstrip())

    def next_event(self, seconds: float) -> Event:
        """Wait for the child's next event.

        Raises:
            CrossborderError: the child ended without one (see ``error``), or no event came in time.
        """
        deadline = Deadline(seconds)
        while not deadline.passed():
            with contextlib.suppress(queue.Empty):
                return self.events.get(timeout=0.1)
            if self.poll() is not None:
                self._threads[0].join(READ_SECONDS)  # The child may have written an event just before it ended.
                if self.events.empty():
                    raise self.error()
        raise ChildFailedError(f"{self.name} did not answer within {seconds:g} s")

    def error(self) -> CrossborderError:
        """Why the child ended: the error that it reported, or else its exit code."""
        self._threads[0].join(READ_SECONDS)
        return self._reported or ChildFailedError(f"{self.name} ended with {describe_end(self.poll())}")

    def poll(self) -> int | None:
        """The exit code, or None while it runs. A child that has ended keeps its process id until ``end``."""
        return self._find_exit_code()

    def wait(self, seconds: float) -> int | None:
        """Wait until the child has ended; the exit code, or None if it still runs after ``seconds``."""
        deadline = Deadline(seconds)
        while (code := self.poll()) is None and not deadline.passed():
            wait_for_end(self.pid, deadline.remaining())
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the child, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # ``end`` in another thread may release the id just now.
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the child at once, also if it is stopped or hangs."""
        self.signal(signal.SIGKILL)

    def close_stdin(self) -> None:
        """Ask the child to end itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            log.debug("%s had closed its stdin", self.name)

    def end(self, seconds: float) -> int:
        """Ask the child to end, kill it and the processes that it started after ``seconds``; return the exit code."""
        self.close_stdin()
        if self.wait(seconds) is None:
            log.warning("%s has not ended in time and is killed", self.name)
        if self._process.returncode is None:  # This is the first call of ``end``: the group still has its id.
            self.kill()  # A process that was forked just now has no group of its own yet.
            with contextlib.suppress(ProcessLookupError):  # If SIGCHLD is ignored, no id outlives its process.
                os.killpg(self.pid, signal.SIGKILL)  # The child, and processes that it has started: a simulator, say.
        try:
            code = self._process.wait(timeout=KILL_SECONDS)
        except subprocess.TimeoutExpired:
            log.error(
                "%s (process %d) was killed and has not ended: is it in a call to a disk or a device that hangs?",
                self.name,
                self.pid,
            )
            return -signal.SIGKILL
        for thread in self._threads:
            thread.join(READ_SECONDS)
        return code


def describe_end(code: int | None) -> str:
    """The exit code in words; after SIGBUS also its cause, which the process itself could not log."""
    cause = " (SIGBUS: a file that it maps was cut short, or its disk is full, fails or is gone)"
    return f"exit code {code}{cause if code == -signal.SIGBUS else ''}"


class RestartPolicy:
    """Allows at most ``times`` restarts within ``seconds``."""

    def __init__(self, times: int = 5, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._seconds, self._clock = times, seconds, clock
        self._recent: deque[float] = deque()

    def allows(self) -> bool:
        """Whether one more restart is allowed now; if it is, it is counted."""
        now = self._clock()
        while self._recent and now - self._recent[0] > self._seconds:
            self._recent.popleft()
        if len(self._recent) >= self._times:
            return False
        self._recent.append(now)
        return True


_EXIT_CODES_TO_RESTART: Final = (1, LearnerUnreachableError.exit_code, EnvHungError.exit_code)


def may_restart_help(code: int) -> bool:
    """Whether a process that ended with this exit code may end with another one if it is started again.

    A restart may help after a signal (a code below 0), after an unexpected exception, when the learner could not be
    reached and when an environment hangs. After any other error of ours, the next start would end in the same way.
    """
    return code <= 0 or code in _EXIT_CODES_TO_RESTART
