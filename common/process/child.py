"""Child processes: how they are started, heard, watched, restarted with a rate limit, and ended in time.

A child gets JSON lines on stdin, the first at its start. It ends itself when its stdin closes, so no child outlives its
parent. It writes events on stdout (see ``say``) and its log on stderr. Other lines on either, which users' parts may
print, are logged. A child runs in a session of its own, so Ctrl-C reaches only the parent. The parent then ends its
children in order, and the processes that they have started with them.

A process that is to become a child later (see ``common.process.spare``) gets no line at its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from common.errors import ChildFailedError, CrossborderError, EnvHungError, LearnerUnreachableError, by_exit_code
from common.process.clocks import Deadline
from common.process.log import relog

if TYPE_CHECKING:
    from common.process.spare import Spare

log = logging.getLogger(__name__)
Event = dict[str, Any]
_MARK = "crossborder-event"
WARM: Final[Event] = {"warm": True}
"""The event of a spare that has imported everything and waits for its boot line."""
KEEP_BUFFERS = {
    # By default glibc gives large buffers back to the kernel, and the next large buffer costs page faults. If it keeps
    # them, a model of 7 MB is assembled and loaded in 6 ms instead of 25, and messages of 1 MiB pass twice as fast.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
}
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""The numbers of the same two settings for mallopt(3)."""


def keep_buffers() -> None:
    """Have this process keep freed memory from now on, as ``KEEP_BUFFERS`` does for children; only glibc knows how."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def read_boot() -> dict[str, Any]:
    """Wait for the boot line, in a child; end the process if the parent ends without one."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    boot: dict[str, Any] = json.loads(line)
    return boot


def say(event: Event) -> None:
    """Send an event from a child to its parent. They agree on its keys; ``error`` and ``warm`` are reserved."""
    sys.stdout.write(json.dumps({_MARK: event}) + "\n")
    sys.stdout.flush()


def say_error(error: CrossborderError) -> int:
    """Tell the parent why this child ends.

    Returns:
        The exit code to end with.
    """
    say({"error": str(error), "exit_code": error.exit_code})
    return error.exit_code


def _event_in(line: str) -> Event | None:
    """The event in a line of stdout, or None if the line is something else that was printed."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value[_MARK] if isinstance(value, dict) and value.keys() == {_MARK} else None


class Child:
    """One running child process, ``python -m module``.

    Args:
        name: the child's name in logs.
        module: the module to run.
        boot: the first JSON line on the child's stdin; None: the child waits for it, and gets it by ``tell``.
        pass_fds: file descriptors that the child inherits.
        env: environment variables that are added to ours.
        arguments: words after the module.
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
    ) -> None:
        self.name = name
        self.events: queue.Queue[Event] = queue.Queue(maxsize=64)
        self.is_warm = False
        """Whether the child has said that it is warm: only a spare says so."""
        self._reported: CrossborderError | None = None
        self._process = subprocess.Popen(
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
            start_new_session=True,
        )
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
        for line in self._process.stdout:
            event = _event_in(line)
            if event is None:
                logging.getLogger(self.name).info("%s", line.rstrip())
            elif "error" in event:
                self._reported = by_exit_code(event["exit_code"], event["error"])
            elif event == WARM:
                self.is_warm = True
            elif self.events.full():
                log.error("%s sends events faster than they are read, one is dropped: %s", self.name, event)
            else:
                self.events.put_nowait(event)

    def _pump_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
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
                self._threads[0].join(timeout=1)  # The child may have written an event just before it ended.
                if self.events.empty():
                    raise self.error()
        raise ChildFailedError(f"{self.name} did not answer within {seconds:g} s")

    def error(self) -> CrossborderError:
        """Why the child ended: the error that it reported, or else its exit code."""
        self._threads[0].join(timeout=1)
        return self._reported or ChildFailedError(f"{self.name} ended with exit code {self.poll()}")

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait until the child has ended; the exit code, or None if it still runs after ``seconds``."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to the child, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the child at once, also if it is stopped or hangs."""
        self._process.kill()

    def close_stdin(self) -> None:
        """Ask the child to end itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            log.debug("%s had closed its stdin", self.name)

    def end(self, seconds: float) -> int:
        """Ask the child to end itself, kill it after ``seconds``, and kill the processes that it has started.

        Returns:
            The exit code.
        """
        self.close_stdin()
        if self.wait(seconds) is None:
            log.warning("%s did not end within %g s and is killed", self.name, seconds)
            self._process.kill()
        code = self._process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # Processes that the child has started, a simulator for example.
        for thread, pipe in zip(self._threads, (self._process.stdout, self._process.stderr), strict=True):
            thread.join(timeout=1)
            if pipe is not None and not thread.is_alive():
                pipe.close()
        return code


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
    """Whether a process that ended with this exit code may end otherwise when it is started again.

    A restart may help after a signal (a code below 0), after an unexpected exception, when the learner could not be
    reached and when an environment hangs. After any other error of ours, the next start would end in the same way.
    """
    return code <= 0 or code in _EXIT_CODES_TO_RESTART


class Supervisor:
    """Keeps one child running until ``stop``: watches it in a thread and starts it again when it dies.

    Args:
        start: starts the child; called again for each restart.
        on_give_up: called with the reason when the child died too often, or ended for a reason that a restart does not
            remove.
        finished: exit codes of a child that has done its work and is not started again.
        policy: how often to restart.
        is_hung: called twice a second while the child runs. A child that hangs is killed, and then started again as
            any other child that dies.
        spare: from which ``start`` takes the next child. It is kept ready here, and ended when watching ends.

    Only a child for which ``may_restart_help`` is started again.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        on_give_up: Callable[[CrossborderError], None],
        finished: frozenset[int] = frozenset({0}),
        policy: RestartPolicy | None = None,
        is_hung: Callable[[], bool] = lambda: False,
        *,
        spare: Spare | None = None,
    ) -> None:
        self._start = start
        self._spare = spare
        self._is_hung = is_hung
        self._on_give_up = on_give_up
        self._finished = finished
        self._policy = policy or RestartPolicy()
        self._stopping = threading.Event()
        self.restarts = 0
        self.child = start()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{self.child.name}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        # From now on only this thread starts, takes and ends spares, so a spare needs no lock.
        try:
            while not self._stopping.is_set() and self._look():
                if self._spare is not None:
                    self._spare.keep_ready()
        finally:
            if self._spare is not None:
                self._spare.end()

    def _look(self) -> bool:
        """Watch the child for half a second, and start it again if it has died; False if it is no longer watched."""
        code = self.child.wait(0.5)
        if code is None and not self._stopping.is_set() and self._is_hung():
            code = self._kill_hung()
        if code is None or self._stopping.is_set():
            return True
        return code not in self._finished and self._restart(code)

    def _kill_hung(self) -> int | None:
        """Kill the child; its exit code, or None if the kernel cannot end it yet, as in a call to a disk that hangs.

        Then the child still counts as hanging, and is killed again half a second later.
        """
        log.error("%s (process %d) shows no sign of life and is killed", self.child.name, self.child.pid)
        self.child.kill()
        return self.child.wait(10.0)

    def _restart(self, code: int) -> bool:
        """Start the child again after its end with this exit code, or give it up; False if it is no longer watched."""
        if not may_restart_help(code) or not self._policy.allows():
            self._on_give_up(self.child.error())
            return False
        log.warning("%s ended with exit code %d and is started again", self.child.name, code)
        try:
            self.child.end(0)
            child = self._start()
        except ChildFailedError as error:
            log.warning("%s and is tried again", error)
            return True  # ``self.child`` is still the dead child: ``_watch`` comes here again while the policy allows.
        except CrossborderError as error:
            self._on_give_up(error)
            return False
        except (OSError, subprocess.SubprocessError) as error:
            self._on_give_up(ChildFailedError(f"{self.child.name} cannot be started again: {error}"))
            return False
        if self._stopping.is_set():
            child.end(0)  # ``stop_watching`` was called during the start: its caller knows only the former child.
            return False
        self.child = child
        self.restarts += 1
        return True

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait until the child is no longer watched: it has finished, was given up, or ``stop_watching`` was called.

        Returns:
            False if the child is still watched after ``seconds``.
        """
        deadline = Deadline(seconds)
        while self._thread.is_alive() and not deadline.passed():
            self._thread.join(timeout=min(1.0, deadline.remaining()))
        return not self._thread.is_alive()

    def stop_watching(self) -> None:
        """Stop watching: if the child ends from now on, it is not started again."""
        self._stopping.set()
        self._thread.join(timeout=5)
