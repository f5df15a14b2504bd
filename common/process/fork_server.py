"""Children that are forked from a process which has imported what they need.

Importing torch takes a process one to three seconds of processor time and 160 MB. The **fork server** imports once, and
forks each child. A child is there at once, and shares the memory of all that was imported. A command that needs torch
itself imports it first, and forks the fork server from its own process (``ForkServer.begin_here``). In all other
processes, ``python -m common.process.fork_server FD MODULE…`` runs a fork server.

A fork server imports its modules, answers the requests that come on the socket FD, and calls ``main`` of a module in
each child. It has one thread, so no child inherits a lock that another thread held. (OpenBLAS, which has threads, ends
them before a fork.) On systems other than Linux, where libraries may not survive a fork, each child is a process that
imports for itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from common.errors import ChildFailedError
from common.process.child import Child, keep_buffers
from common.process.clocks import Deadline
from common.process.signals import STOP_SIGNALS, leave_to_default
from common.system import peek_exit_code, wait_for_end

IMPORT_SECONDS: Final = 120.0
"""A fork server imports, and answers, within this time, also on a host that does much else."""
NAME: Final = "fork-server"
"""The name of the process that forks, in logs and in top(1)."""
CHILD_ARENAS: Final = 2
"""See ``common.process.child.KEEP_BUFFERS``."""
_MESSAGE_BYTES: Final = 4096
_N_STREAMS: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""The numbers of prctl(2) for a signal that a process gets when its parent dies, and for the name of a process."""


class _Requests:
    """One fork server and the socket on which it takes requests; any thread may ask.

    Args:
        start: starts the fork server, which takes requests on the socket.
    """

    def __init__(self, start: Callable[[socket.socket], Child]) -> None:
        self._lock = threading.Lock()
        self._socket, its_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(IMPORT_SECONDS)
        with its_socket:
            self._server = start(its_socket)

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def has_ended(self) -> bool:
        return self._server.poll() is not None

    def ask(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> Any:
        """Send a request, and return the answer.

        Raises:
            ChildFailedError: the fork server has ended, or does not answer.
            OSError: it could not fork.
        """
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
                message = self._socket.recv(_MESSAGE_BYTES)
            except ConnectionError:  # It has ended before, or before it read the request.
                message = b""
            except OSError as error:
                self._server.kill()
                raise ChildFailedError(f"{self._server.name} does not answer: {error}") from error
        if not message:
            self._server.wait(1.0)
            raise self._server.error()
        answer = json.loads(message)
        if isinstance(answer, list):
            raise OSError(*answer)
        return answer

    def find_code(self, pid: int, releases: bool) -> int | None:
        """The exit code of a child of the fork server, as ``_find_code``."""
        try:
            code: int | None = self.ask({"code": pid, "releases": releases})
        except ChildFailedError:  # When the fork server dies, the kernel kills its children.
            return -signal.SIGKILL
        return code

    def end(self) -> None:
        """End the fork server at once, even if it still imports: it has nothing to lose."""
        self._socket.close()
        self._server.kill()
        self._server.end(1.0)


def _find_code(pid: int, releases: bool) -> int | None:
    """The exit code of a child of this process, or None while it runs; its process id may be released with it."""
    code = peek_exit_code(pid)
    if code is not None and releases:
        os.waitpid(pid, 0)
    return code


class Forked:
    """One forked process, with those members of ``subprocess.Popen`` that ``Child`` uses.

    Args:
        fork: forks it, with the descriptors of its ends of three pipes: stdin, stdout and stderr; returns its id.
        find_code: its exit code by its id, or None while it runs; releases its id with the code if the second argument
            says so, and is not called after that.
    """

    def __init__(self, fork: Callable[[Sequence[int]], int], find_code: Callable[[int, bool], int | None]) -> None:
        fds = list[int]()
        try:
            for _ in range(_N_STREAMS):
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


class ForkServer:
    """Starts children, which are forked from one process; from any thread.

    Args:
        modules: the modules that the children run, which the fork server imports first; each has a function ``main``
            without arguments.
        pass_fds: file descriptors that the children inherit.
        env: environment variables that are added to those of this process.
    """

    def __init__(
        self, modules: Sequence[str], pass_fds: Sequence[int] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self._modules, self._pass_fds, self._env = modules, pass_fds, env or {}
        self._directory = Path.cwd()  # Users' parts are found there, whatever an environment in this process does.
        self._lock = threading.Lock()
        self._requests: _Requests | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process that forks; None if there is none."""
        return self._requests.pid if self._requests is not None else None

    def begin(self) -> None:
        """Start to import now, before the first child; ``start_child`` waits for that."""
        with self._lock:
            if self._requests is not None and self._requests.has_ended:
                self.end()
            if self._requests is None and sys.platform == "linux":
                self._requests = _Requests(self._start_python)

    def begin_here(self, module: str) -> None:
        """Import a module, and then fork the process that forks children from this one, whose memory it shares.

        Call this in the main thread of a process that has run only our code, and opened no device. If it has another
        thread, or on systems other than Linux, this is ``begin``.
        """
        if threading.active_count() == 1 and sys.platform == "linux":
            # A search for garbage would write to the pages of all objects, and each process would copy them.
            gc.disable()
            try:
                importlib.import_module(module)
                gc.freeze()
                with self._lock:
                    self._requests = _Requests(self._fork_here)
            finally:
                gc.enable()
        else:
            self.begin()

    def _start_python(self, requests: socket.socket) -> Child:
        fds, words = (requests.fileno(), *self._pass_fds), (str(requests.fileno()), *self._modules)
        return Child(NAME, __name__, None, fds, self._env, arguments=words, directory=self._directory)

    def _fork_here(self, requests: socket.socket) -> Child:
        return Child(NAME, __name__, None, fork=lambda: Forked(partial(self._fork_server, requests), _find_code))

    def _fork_server(self, requests: socket.socket, streams: Sequence[int]) -> int:
        """Fork the fork server from this process and return its id; neither it nor its children return from this."""
        sys.stdout.flush()
        sys.stderr.flush()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

        def serve() -> int:
            _become(NAME, streams)
            _forget_caller({requests.fileno(), *self._pass_fds})
            os.environ.update(self._env)
            return _run(requests, self._modules, signals)

        try:
            pid = os.fork()
            if pid == 0:
                _end_with_code_of(serve)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        return pid

    def start_child(self, name: str, module: str, boot: Mapping[str, Any]) -> Child:
        """Start a child that runs one of the modules, and whose first line on stdin is ``boot``.

        Raises:
            ChildFailedError: the fork server cannot import the modules, or was killed just now; the next call starts
                another one.
            OSError: the host has no process or memory for it.
        """
        self.begin()
        requests = self._requests
        if requests is None:
            return Child(name, module, boot, self._pass_fds, self._env, directory=self._directory)
        fork = partial(requests.ask, {"fork": name, "module": module})
        return Child(name, module, boot, fork=lambda: Forked(fork, requests.find_code))

    def end(self) -> None:
        """End the process that forks; its children have ended before."""
        if self._requests is not None:
            self._requests.end()
            self._requests = None


def _run(requests: socket.socket, modules: Sequence[str], signals: Collection[int]) -> int:
    """Run a fork server, and in the processes that it forks a child; return the exit code.

    Args:
        requests: from the process that started it.
        modules: to be imported before the first fork.
        signals: that are blocked in children.
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
    keep_buffers(arenas=CHILD_ARENAS)
    code: int = importlib.import_module(asked).main()
    return code


def _serve(requests: socket.socket) -> str | None:
    """Answer requests until the parent closes the socket and all children have ended.

    Returns:
        In each child, the module that it runs; in the fork server, None.
    """
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, _N_STREAMS)
        if not message:
            break
        request = json.loads(message)
        answer: Any
        if "fork" in request:
            parent = os.getpid()
            try:
                if len(fds) < _N_STREAMS:  # The kernel gives as many as this process may open.
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
            answer = _find_code(request["code"], request["releases"])
        try:
            requests.sendall(json.dumps(answer).encode())
        except BrokenPipeError:  # The parent has ended since it asked.
            break
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
    """Leave to the command its descriptors, but for those that are kept, its handlers of signals, log and streams."""
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
