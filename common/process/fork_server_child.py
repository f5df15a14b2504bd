"""The process that forks children; ``common.process.fork_server`` starts it and asks it.

It imports its modules, answers the requests that come on a socket, and calls ``main`` of a module in each child. It has
one thread, so no child inherits a lock that another thread held. (OpenBLAS has threads, and ends them before a fork.)
``python -m common.process.fork_server_child FD MODULE…`` runs it with the socket FD; ``fork_from_here`` forks it from a
command.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from common.process.child import N_STREAMS, keep_buffers
from common.process.ending import end_in_time
from common.process.signals import STOP_SIGNALS, leave_to_default
from common.system import peek_exit_code

NAME: Final = "fork-server"
"""The name of the process that forks, in logs and in top(1)."""
MESSAGE_BYTES: Final = 4096
"""No request and no answer is longer."""
ORPHAN_SECONDS: Final = 30
"""The time in which children end in order after the end of the process that started them. Actors hand over rows."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""The numbers of prctl(2) for a signal that a process gets when its parent dies, and for the name of a process."""


def find_code(pid: int, releases: bool) -> int | None:
    """The exit code of a child of this process, or None while it runs; its process id may be released with it."""
    code = peek_exit_code(pid)
    if code is not None and releases:
        os.waitpid(pid, 0)
    return code


def _run(requests: socket.socket, modules: Sequence[str], signals: Collection[int]) -> int:
    """Run a fork server, and in the processes that it forks a child; return the exit code.

    Args:
        requests: from the process that started it.
        modules: to be imported before the first fork.
        signals: that are blocked in children; in the fork server itself, those that ask a process to stop are too.
    """
    # A search for garbage would write to the pages of all objects, and each child would copy them.
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    asked = _serve(requests)
    if asked is None:
        return 0
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    keep_buffers(is_child=True)
    return end_in_time(importlib.import_module(asked).main)


def _serve(requests: socket.socket) -> str | None:
    """Answer requests until the parent closes the socket and all children have ended, or had the time to end.

    Returns:
        In each child, the module that it runs; in the fork server, None.
    """
    while True:
        message, fds, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, N_STREAMS)
        if not message:
            break
        request = json.loads(message)
        answer: Any
        if "fork" in request:
            parent = os.getpid()
            try:
                if len(fds) < N_STREAMS:  # The kernel gives as many as this process may open.
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                answer = os.fork()
            except OSError as error:
                answer = [error.errno, error.strerror]
            if answer == 0:
                requests.close()
                _become(request["fork"], fds)
                _end_with(parent)
                return str(request["module"])
            for fd in fds:
                os.close(fd)
        else:
            answer = find_code(request["code"], request["releases"])
        try:
            requests.sendall(json.dumps(answer).encode())
        except BrokenPipeError:  # The parent has ended since it asked.
            break
    signal.alarm(ORPHAN_SECONDS)  # It ends this process; the kernel then kills children that hang or are stopped.
    with contextlib.suppress(ChildProcessError):  # There is none left.
        while True:
            os.wait()
    return None


def _become(name: str, streams: Sequence[int]) -> None:
    """Be a process of its own in what a fork shares: session, name, descriptors 0 to 2, random numbers."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())  # As top(1) shows it; the kernel cuts it off after 15 bytes.
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    # Python seeds its own random numbers anew in a forked process. Those of numpy would be the same in all children.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before the line above.
        os.kill(os.getpid(), signal.SIGKILL)


def fork_from_here(
    requests: socket.socket,
    modules: Sequence[str],
    streams: Sequence[int],
    *,
    pass_fds: Sequence[int],
    env: Mapping[str, str],
) -> int:
    """Fork the fork server from this process; neither it nor its children return from this function.

    Args:
        requests: the fork server's end of the socket.
        modules: which it imports before the first fork.
        streams: its descriptors for stdin, stdout and stderr.
        pass_fds: file descriptors of this process that it keeps; it closes the others.
        env: environment variables that are added to those of this process.

    Returns:
        The id of the fork server.

    Raises:
        OSError: the host has no process or memory for it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def run() -> int:
        _become(NAME, streams)
        _forget_caller({requests.fileno(), *pass_fds})
        os.environ.update(env)
        return _run(requests, modules, signals)

    try:
        pid = os.fork()
        if pid == 0:
            _end_with_code_of(run)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    return pid


def _end_with_code_of(run: Callable[[], int]) -> NoReturn:
    """Call a function in a process that was forked from the middle of a command, then end it as Python would.

    The rest of the command is not the work of this process: nothing that is raised reaches the caller.
    """
    code = 1
    try:
        try:
            code = run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - as Python does it
            sys.excepthook(*sys.exc_info())
        # As ``multiprocessing`` does it: threads are waited for, then come the functions registered with ``atexit``.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def _forget_caller(kept: Collection[int]) -> None:
    """Leave to the command its descriptors, but for those that are kept, its handlers of signals, log and streams.

    Its objects are its own too: at the end of this process, their finalizers would close descriptors of other files.
    """
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    faulthandler.disable()  # It may write to one of those descriptors.
    for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # The list had a descriptor of its own.
                os.close(fd)
    leave_to_default()
    logging.getLogger().handlers.clear()
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - as Python opens them
        for fd, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )


def main() -> int:
    """Run a fork server, or in the processes that it forks a child; return the exit code."""
    # The parent says when this process ends. A signal that a whole job gets waits here; children begin without it.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    return _run(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:], signals)


if __name__ == "__main__":
    sys.exit(main())
