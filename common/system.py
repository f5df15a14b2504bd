"""What Linux offers beyond POSIX, and what stands in for it on macOS, where only actors and tools can run."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.05
"""The time between two looks at a process that has no descriptor."""
MOST_SECONDS: Final = 3600.0
"""The longest single wait; the kernel refuses waits of 25 days and more."""


def usable_cores() -> tuple[int, ...]:
    """The cores that the calling thread may use."""
    if sys.platform == "linux":
        cores = os.sched_getaffinity(0)
    else:
        cores = set(range(os.cpu_count() or 1))
    return tuple(sorted(cores))


def bind_threads(cores: Sequence[int]) -> None:
    """Let all threads of this process use these cores only; where a system cannot do that, they use all.

    Raises:
        OSError: the host has none of these cores, or its cgroup allows none.
    """
    if sys.platform == "linux":
        # Linux binds a single thread. A thread that is not bound yet may start another one, so look until none is new.
        bound = set[int]()
        while new := {int(thread.name) for thread in Path("/proc/self/task").iterdir()} - bound:
            for thread in new:
                with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
                    os.sched_setaffinity(thread, cores)
            bound |= new


@contextlib.contextmanager
def above_other_threads() -> Iterator[None]:
    """A context in which the calling thread comes first, if the process has real-time priority (chrt).

    All threads of such a process have the same priority, and none of them yields to another, so the calling thread gets
    the next higher one.
    """
    if sys.platform == "linux" and (policy := os.sched_getscheduler(0)) in {os.SCHED_FIFO, os.SCHED_RR}:
        present = os.sched_getparam(0)
        higher = min(present.sched_priority + 1, os.sched_get_priority_max(policy))
        try:
            os.sched_setscheduler(0, policy, os.sched_param(higher))
        except PermissionError:
            log.warning(
                "the thread that acts cannot have the real-time priority %d, one above the other threads of this actor",
                higher,
            )
        try:
            yield
        finally:  # An actor that starts anew makes new threads, with the priority of this thread.
            os.sched_setscheduler(0, policy, present)
    else:
        yield


def allocate(file: int, size: int) -> None:
    """Give an empty file ``size`` bytes of 0 that have their place on the disk.

    Raises:
        OSError: the disk is full, for example.
    """
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, size)
    else:
        block = 1 << 20
        with open(file, "wb", closefd=False) as out:
            for start in range(0, size, block):
                out.write(bytes(min(block, size - start)))


def peek_exit_code(pid: int) -> int | None:
    """The exit code of a child of this process, which keeps its process id, or None while it runs; needs Linux.

    Raises:
        ChildProcessError: there is no such child.
    """
    if sys.platform == "linux":
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    return None


def find_exit_code(process: subprocess.Popen[Any]) -> int | None:
    """The exit code of a child, or None while it runs.

    On Linux a child that has ended keeps its process id until ``Popen`` asks for its code. If the kernel could give the
    id to another process before, a signal to the child might reach that process. Elsewhere ``Popen`` is asked at once.
    """
    if sys.platform == "linux" and process.returncode is None:
        with contextlib.suppress(ChildProcessError):  # Another thread may have released the id just now.
            return peek_exit_code(process.pid)
    return process.poll()


def wait_for_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, for at most ``seconds``; it may return earlier.

    Without a descriptor of the process it sleeps for a moment: Linux before 5.3, some builds of Python and macOS know
    none, and a host may have none left.
    """
    if sys.platform == "linux":
        try:
            watched = os.pidfd_open(pid)
        except (AttributeError, OSError):
            log.debug("the end of process %d is looked for every %g s", pid, LOOK_SECONDS)
        else:
            try:
                end = select.poll()
                end.register(watched, select.POLLIN)
                end.poll(1000 * min(seconds, MOST_SECONDS))
            finally:
                os.close(watched)
            return
    time.sleep(min(seconds, LOOK_SECONDS))
