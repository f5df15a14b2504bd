"""Processes that are forked from one that has imported torch, which would take each of them more than a second.

The fork server imports libraries and modules of ours that most commands need. For each request it forks. The new
process does what ``python -m MODULE`` does or, if the request names ``MODULE:FUNCTION``, what the script of a command
does. It has its own directory, environment, ``sys.path``, arguments and descriptors. So its modules of ours are those
of this clone: a test of other code, such as a former release, starts Python itself.
The fork server is nobody's child, so the tests see no process that they did not start. It ends when the process that
asked for it has ended, and kills what it has started.

A process with ``CHILDREN_ARE_FORKED`` in its environment asks the fork server for its own children too, see
``forking``. They are then not its children, so a test that looks at the children of a command goes without.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final

LIBRARIES: Final = (
    "google.protobuf.message_factory",
    "gymnasium",
    "gymnasium.envs.classic_control",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "numpy.testing",
    "prometheus_client",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.types",
    "rich.console",
    "safetensors.torch",
    "torch",
    "yaml",
    "zstandard",
)
OURS: Final = (
    "actor.manager",
    "actor.remote_worker",
    "actor.worker",
    "common.agents.dqn",
    "learner.commands.learner_server",
    "learner.ingest.ingest_child",
    "learner.loop.in_turns",
    "learner.loop.server",
)
"""None of them uses gRPC when it is imported: a forked process would lack the threads that gRPC starts at its start."""
ROOT: Final = str(Path(__file__).parent.parent)
FORKED_MODULES: Final = {
    "actor.remote_worker",
    "actor.worker",
    "common.process.fork_server_child",
    "crossborder.sweeps.sweep_child",
    "learner.evaluation.evaluator_child",
    "learner.commands.standby_child",
    "learner.ingest.ingest_child",
}
"""The modules of children that are forked."""
CHILDREN_ARE_FORKED: Final = "CROSSBORDER_TESTS_FORK_CHILDREN"
CODE_SECONDS: Final = 5.0
"""The exit code of a process that has ended comes from the fork server within this time."""
REQUEST_BYTES: Final = 1 << 20
MOST_DESCRIPTORS: Final = 16
UNUSED_DESCRIPTORS: Final = 500
"""Descriptors from here on have no number that a request names: those of a test process are below."""


class Forked:
    """One process of a fork server; it has those methods of ``subprocess.Popen`` that tests use."""

    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    stderr: IO[str] | None = None

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # The exit code comes once, to whichever thread asks for it.
        self.pid = int(self._hear(None))
        self.returncode: int | None = None

    def _hear(self, timeout: float | None) -> bytes:
        self._connection.settimeout(timeout)
        message = self._connection.recv(64)
        if not message:
            raise ChildProcessError("the fork server has ended")
        return message

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; below 0 the signal that ended it."""
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = int(self._hear(timeout))
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
                self._connection.close()
            return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0 if self._is_running() else CODE_SECONDS)
        return self.returncode

    def _is_running(self) -> bool:
        try:
            watched = os.pidfd_open(self.pid)
        except OSError as error:
            # The fork server has waited for it. Its number may be that of another process's thread since: ENOENT, or
            # EINVAL on an older Linux.
            if error.errno not in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
                raise
            return False
        try:
            end = select.poll()
            end.register(watched, select.POLLIN)
            return not end.poll(0)
        finally:
            os.close(watched)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended since.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Asks a fork server for processes.

    Args:
        address: of the fork server.
    """

    def __init__(self, address: bytes) -> None:
        self.address = address

    @classmethod
    def begin(cls) -> ForkServer:
        """Start a fork server, which runs until this process ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # Linux chooses a name.
            listener.listen()
            address: bytes = listener.getsockname()
            lifeline, _ = os.pipe()  # Our end of it closes when this process ends.
            fds = (listener.fileno(), lifeline)
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            command = [sys.executable, "-P", __file__, *map(str, fds)]
            subprocess.run(command, check=True, pass_fds=fds, stdout=subprocess.DEVNULL, env=environment)
            os.close(lifeline)
        return cls(address)

    def start(
        self, module: str, arguments: Sequence[str], *, log: Path, cwd: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Run a module; all that it writes goes to ``log``."""
        with log.open("wb") as output:
            return self.start_into(output.fileno(), module, arguments, cwd=cwd, environment=environment)

    def start_into(
        self, output: int, module: str, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Run a module; all that it writes goes to the open descriptor ``output``."""
        return self._ask(module, arguments, {1: output, 2: output}, cwd=cwd, environment=environment)

    def start_piped(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        pass_fds: Sequence[int],
        environment: Mapping[str, str],
        cwd: Path | None = None,
    ) -> Forked:
        """Run a module as ``common.process.child`` does, with pipes to it and from it, and some of our descriptors."""
        pipes = [os.pipe() for _ in range(3)]
        (its_stdin, stdin), (stdout, its_stdout), (stderr, its_stderr) = pipes
        descriptors = {0: its_stdin, 1: its_stdout, 2: its_stderr} | {fd: fd for fd in pass_fds}
        try:
            cwd = cwd or Path.cwd()
            started = self._ask(module, arguments, descriptors, cwd=cwd, environment=environment, is_child=True)
        finally:
            for fd in (its_stdin, its_stdout, its_stderr):
                os.close(fd)
        started.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        started.stdout, started.stderr = (os.fdopen(fd, encoding="utf-8", errors="replace") for fd in (stdout, stderr))
        return started

    def _ask(
        self,
        module: str,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        is_child: bool = False,
    ) -> Forked:
        """Ask for a process; ``descriptors`` are ours by their numbers in the process."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.address)
        request: dict[str, Any] = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "cwd": str(cwd),
            "descriptors": list(descriptors),
            "is_child": is_child,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        socket.send_fds(connection, [json.dumps(request).encode()], [*descriptors.values()])
        return Forked(connection)


def forking(server: Callable[[], ForkServer]) -> SimpleNamespace:
    """A module ``subprocess`` for ``common.process.child``: it forks the processes that run ``FORKED_MODULES``.

    Args:
        server: gives the fork server; called for each process.
    """
    return SimpleNamespace(**{**vars(subprocess), "Popen": partial(_open, server)})


def _open(
    server: Callable[[], ForkServer],
    command: Sequence[str],
    *,
    pass_fds: Sequence[int],
    env: Mapping[str, str],
    cwd: Path | None = None,
    **others: Any,
) -> Forked | subprocess.Popen[str]:
    _python, _unsafe_path, _m, module, *arguments = command
    if module in FORKED_MODULES:
        return server().start_piped(module, arguments, pass_fds=pass_fds, environment=env, cwd=cwd)
    return subprocess.Popen(command, pass_fds=pass_fds, env=env, cwd=cwd, **others)


def _serve(listener: socket.socket, lifeline: int) -> dict[str, Any]:
    """Fork for each request; returns in the new processes only, with the request."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(lifeline, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}
    """By the descriptor that tells of its end: the id of each process, and who asked for it."""
    while True:
        for ready in (key.fd for key, _ in selector.select()):
            if ready == lifeline:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif ready in running:
                pid, connection = running.pop(ready)
                selector.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection:
                    _tell(connection, code)
            else:
                connection, _ = listener.accept()
                message, received, _, _ = socket.recv_fds(connection, REQUEST_BYTES, MOST_DESCRIPTORS)
                if not message:  # The process that wanted to ask was killed before.
                    connection.close()
                    continue
                request: dict[str, Any] = json.loads(message)
                pid = os.fork()
                if pid == 0:
                    for asked in (*(asked for _, asked in running.values()), connection, listener):
                        asked.close()
                    selector.close()
                    for descriptor in (*running, lifeline):
                        os.close(descriptor)
                    return request | {"received": received}
                for descriptor in received:
                    os.close(descriptor)
                ended = os.pidfd_open(pid)
                running[ended] = (pid, connection)
                selector.register(ended, selectors.EVENT_READ)
                _tell(connection, pid)


def _tell(connection: socket.socket, number: int) -> None:
    """Tell the process that has asked, unless it was killed meanwhile, with the answer before read or unread."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(str(number).encode())


def _number(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each descriptor that has come with a request its number."""
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, UNUSED_DESCRIPTORS) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """Be the process that was asked for, up to the moment at which Python would run the module."""
    os.sched_setaffinity(0, request["cores"])
    places = [request["cwd"]]
    if request["is_child"]:
        os.setsid()
        places = []  # Its command has -P.
    _number(request["received"], request["descriptors"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [*places, *filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [request["module"], *request["arguments"]]
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # ``OURS`` may import that module too.


class QuickEnd:
    """Ends this process before Python frees all modules: a forked process copies each page of memory that it frees.

    Python has waited for threads by then, and has called all functions that were registered with ``atexit`` later than
    this object. A process that ends by an exception or a message ends as Python ends it.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._end)

    @contextlib.contextmanager
    def noting_code(self) -> Iterator[None]:
        """Note the exit code with which the block ends."""
        try:
            yield
        except SystemExit as end:
            if isinstance(end.code, int):
                self._code = end.code & 0xFF
            raise
        self._code = 0

    def _end(self) -> None:
        if self._code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._code)


def _draw_once() -> None:
    """Draw a picture, so that matplotlib has found its fonts and its writer of files for all that are forked."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(1, 1))
    figure.text(0, 0, "x")
    figure.savefig(io.BytesIO())


def main() -> None:
    quick_end = QuickEnd()
    listener, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    address: bytes = listener.getsockname()
    if os.fork():
        os._exit(0)  # Init becomes the parent of the fork server.
    os.setsid()
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    sys.path.insert(0, ROOT)
    for module in (*LIBRARIES, *OURS):
        importlib.import_module(module)
    _draw_once()
    sys.path.remove(ROOT)
    gc.freeze()  # New processes need not look for garbage among the objects of the modules, nor copy their pages.
    request = _serve(listener, lifeline)
    _become(request)
    if CHILDREN_ARE_FORKED in os.environ:
        importlib.import_module("common.process.child").__dict__["subprocess"] = forking(partial(ForkServer, address))
    module, _, function = request["module"].partition(":")
    with quick_end.noting_code():
        if function:
            sys.exit(getattr(importlib.import_module(module), function)())
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
