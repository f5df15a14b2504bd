"""Children that are forked from a process which has imported what they need.

Importing torch takes a process one to three seconds of processor time and 160 MB. The **fork server** imports once, and
forks each child. A child is there at once, and shares the memory of all that was imported.
``python -m common.process.fork_server FD MODULE`` runs a fork server: it imports the module, answers the requests that
come on the socket FD, and calls ``main`` of the module in each child.

A fork server has one thread, so no child inherits a lock that another thread held. (OpenBLAS, which has threads, ends
them before a fork.) On systems other than Linux, where libraries may not survive a fork, each child is a process that
imports for itself.
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from common.errors import ChildFailedError
from common.process.child import Child
from common.process.clocks import Deadline
from common.process.signals import STOP_SIGNALS
from common.system import peek_exit_code, wait_for_end

log = logging.getLogger(__name__)
IMPORT_SECONDS: Final = 120.0
"""A fork server imports, and answers, within this time, also on a host that does much else."""
_MESSAGE_BYTES: Final = 4096
_N_STREAMS: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""The numbers of prctl(2) for a signal that a process gets when its parent dies, and for the name of a process."""


class _Requests:
    """One fork server and the socket on which it takes requests; any thread may ask.

    Args:
        name: the fork server's in logs.
        module: which it imports.
        pass_fds: file descriptors that it and its children inherit.
        env: environment variables that are added to those of this process.
        directory: in which it and its children start.
    """

    def __init__(
        self, name: str, module: str, pass_fds: Sequence[int], env: Mapping[str, str] | None, directory: Path
    ) -> None:
        self._lock = threading.Lock()
        self._socket, its_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(IMPORT_SECONDS)
        with its_socket, contextlib.ExitStack() as stack:
            stack.enter_context(self._socket)
            fd = its_socket.fileno()
            words = (str(fd), module)
            self._server = Child(name, __name__, None, (fd, *pass_fds), env, arguments=words, directory=directory)
            stack.pop_all()

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def has_ended(self) -> bool:
        return self._server.poll() is not None

    def ask(self, request: Mapping[str, Any], fds: tuple[int, ...] = ()) -> Any:
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

    def end(self) -> None:
        """End the fork server at once, even if it still imports: it has nothing to lose."""
        self._socket.close()
        self._server.kill()
        self._server.end(1.0)


class Forked:
    """One child of a fork server, with those members of ``subprocess.Popen`` that ``Child`` uses."""

    def __init__(self, name: str, requests: _Requests) -> None:
        fds = list[int]()
        try:
            for _ in range(_N_STREAMS):
                fds += os.pipe()
            its_stdin, stdin, stdout, its_stdout, stderr, its_stderr = fds
            self.pid: int = requests.ask({"fork": name}, (its_stdin, its_stdout, its_stderr))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        for fd in (its_stdin, its_stdout, its_stderr):
            os.close(fd)
        self.returncode: int | None = None
        self._requests = requests
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
            try:
                code: int | None = self._requests.ask({"code": self.pid, "releases": releases})
            except ChildFailedError:  # When the fork server dies, the kernel kills its children.
                code = -signal.SIGKILL
            if releases:
                self.returncode = code
            return code


class ForkServer:
    """Starts children of one kind, which are forked from one process; from any thread.

    Args:
        name: of the kind, in logs.
        module: the module that the children run; it has a function ``main`` without arguments.
        pass_fds: file descriptors that they inherit.
        env: environment variables that are added to those of this process.
    """

    def __init__(
        self, name: str, module: str, pass_fds: Sequence[int] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self._name, self._module, self._pass_fds, self._env = name, module, pass_fds, env
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
                name = f"{self._name}-imports"
                self._requests = _Requests(name, self._module, self._pass_fds, self._env, self._directory)

    def start_child(self, name: str, boot: Mapping[str, Any]) -> Child:
        """Start a child, whose first line on stdin is ``boot``.

        Raises:
            ChildFailedError: the fork server cannot import the module, or was killed just now; the next call starts
                another one.
            OSError: the host has no process or memory for it.
        """
        self.begin()
        requests = self._requests
        if requests is None:
            return Child(name, self._module, boot, self._pass_fds, self._env, directory=self._directory)
        return Child(name, self._module, boot, fork=lambda: Forked(name, requests))

    def end(self) -> None:
        """End the process that forks; its children have ended before."""
        if self._requests is not None:
            self._requests.end()
            self._requests = None


def _serve(requests: socket.socket) -> bool:
    """Answer requests until the parent closes the socket and all children have ended; return True in each child."""
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
                _become_child(request["fork"], parent, fds)
                return True
            for fd in fds:
                os.close(fd)
        else:
            answer = peek_exit_code(request["code"])
            if answer is not None and request["releases"]:
                os.waitpid(request["code"], 0)
        try:
            requests.sendall(json.dumps(answer).encode())
        except BrokenPipeError:  # The parent has ended since it asked.
            break
    with contextlib.suppress(ChildProcessError):  # There is none left.
        while True:
            os.wait()
    return False


def _become_child(name: str, parent: int, fds: list[int]) -> None:
    """Be a process of its own in what the fork server shares with it: session, name, descriptors, random numbers."""
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, name.encode())  # As top(1) shows it; the kernel cuts it off after 15 bytes.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the line above.
        os.kill(os.getpid(), signal.SIGKILL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    # Python seeds its own random numbers anew in a forked process. Those of numpy would be the same in all children.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def main() -> int:
    """Run a fork server, or in the processes that it forks a child; return the exit code."""
    # The parent says when this process ends. A signal that a whole job gets waits here; children begin without it.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    requests, name = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    # A search for garbage would write to the pages of all objects, and each child would copy them.
    gc.disable()
    module = importlib.import_module(name)
    gc.freeze()
    if not _serve(requests):
        return 0
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    code: int = module.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
