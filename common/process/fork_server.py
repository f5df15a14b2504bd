"""Children that are forked from a process which has imported what they need.

Importing torch takes a process one to three seconds of processor time and 160 MB. The **fork server** imports once, and
forks each child. A child is there at once, and shares the memory of all that was imported. A command that needs torch
itself imports it first, and forks the fork server from its own process (``ForkServer.begin_here``); for all other
processes the fork server is another Python.

On systems other than Linux, where libraries may not survive a fork, each child is a process that imports for itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.errors import ChildFailedError
from common.process.child import Child, Forked
from common.process.fork_server_child import MESSAGE_BYTES, NAME, find_code, fork_from_here

log = logging.getLogger(__name__)
IMPORT_SECONDS: Final = 120.0
"""A fork server imports, and answers, within this time, also on a host that does much else."""
CHILD: Final = "common.process.fork_server_child"
"""The module of the process that forks."""


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

    @property
    def was_killed(self) -> bool:
        return (self._server.poll() or 0) < 0

    def ask(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> Any:
        """Send a request, and return the answer.

        Raises:
            ChildFailedError: the fork server has ended, or does not answer.
            OSError: it could not fork.
        """
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
                message = self._socket.recv(MESSAGE_BYTES)
            except ConnectionError:  # It has ended before, or before it read the request.
                message = b""
            except OSError as error:
                self._server.kill()
                self._server.wait(1.0)
                raise ChildFailedError(f"{self._server.name} does not answer: {error}") from error
        if not message:
            self._server.wait(1.0)
            raise self._server.error()
        answer = json.loads(message)
        if isinstance(answer, list):
            raise OSError(*answer)
        return answer

    def find_code(self, pid: int, releases: bool) -> int | None:
        """The exit code of a child of the fork server, as ``fork_server_child.find_code``."""
        try:
            code: int | None = self.ask({"code": pid, "releases": releases})
        except ChildFailedError:  # When the fork server dies, the kernel kills its children.
            return -signal.SIGKILL
        return code

    def end(self) -> None:
        """End the fork server at once, even if it still imports: it has nothing to lose. Nobody waits for it longer."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._server.kill()
        self._server.end(1.0)
        with self._lock:  # Nobody may wait for a descriptor while it is closed: its number may be that of another file.
            self._socket.close()


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
        return Child(NAME, CHILD, None, fds, self._env, arguments=words, directory=self._directory)

    def _fork_here(self, requests: socket.socket) -> Child:
        fork = partial(fork_from_here, requests, self._modules, pass_fds=self._pass_fds, env=self._env)
        return Child(NAME, CHILD, None, fork=lambda: Forked(fork, find_code))

    def start_child(self, name: str, module: str, boot: Mapping[str, Any]) -> Child:
        """Start a child that runs one of the modules, and whose first line on stdin is ``boot``.

        Raises:
            ChildFailedError: the fork server cannot import the modules, or twice was killed or did not answer.
            OSError: the host has no process or memory for it.
        """
        self.begin()
        requests = self._requests
        try:
            return self._start_by(requests, name, module, boot)
        except ChildFailedError as error:
            # None: another thread has called ``end``.
            if requests is None or self._requests is None or not requests.was_killed:
                raise
            log.warning("%s, before %s was there; another one is started", error, name)
        self.begin()
        return self._start_by(self._requests, name, module, boot)

    def _start_by(self, requests: _Requests | None, name: str, module: str, boot: Mapping[str, Any]) -> Child:
        if requests is None:
            return Child(name, module, boot, self._pass_fds, self._env, directory=self._directory)
        fork = partial(requests.ask, {"fork": name, "module": module})
        return Child(name, module, boot, fork=lambda: Forked(fork, requests.find_code))

    def end(self) -> None:
        """End the process that forks, from any thread; its children have ended before, or are killed with it."""
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.end()
