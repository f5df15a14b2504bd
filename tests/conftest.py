"""Shared fixtures: a configuration of counting parts, a learner host with real ingest, commands as processes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import SystemRandom
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import yaml

from common.config.run_config import RunConfig
from common.process import signals
from common.settings import validate
from tests.disks import Disk, mounted
from tests.fork_server import Forked, ForkServer

if TYPE_CHECKING:
    from learner.loop.server import LearnerServer

# No assertion on elapsed time. Each run draws other examples, so a few in each run are many over the runs.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=25)
hypothesis.settings.load_profile("untimed")

# Several test processes share the cores: more threads in each would only wait for one another, and spin meanwhile.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent
MORE_STEPS = 1 << 40
"""More steps than a test stores: while the trainer waits for them, the replay ratio holds no actor back."""
PATIENCE = 300.0
"""Seconds until a wait is given up; far more than it takes, also on a machine that does much else."""
SIGNALS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""How a process handles them that was started in the foreground: a shell's job in the background ignores SIGINT."""
MakeConfig = Callable[..., RunConfig]


def counting_values(run_dir: Path) -> dict[str, Any]:
    """A run of counting parts on free ports, as plain values."""
    return {
        "name": "counting",
        "run_dir": str(run_dir),
        "env": {"target": "tests.parts:CountingEnv", "rebuilds_per_minute": 0},  # What it asserts must end the test.
        "agent": {"target": "tests.parts:CheckingAgent"},
        "push": {"n_buffer": 10, "flush_seconds": 60.0},
        "trainer": {"max_opts": 500, "eval_interval": 0, "record_interval": 100, "sync_interval": 10},
        "replay": {"capacity": 1_000_000},
        "server": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": "127.0.0.1:0"},
    }


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the sections of ``changes`` laid over them."""
    return {**values, **{k: {**(values.get(k) or {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


def counting_config(run_dir: Path, **changes: Any) -> RunConfig:
    """A counting run's configuration; keyword arguments are laid over its sections."""
    return validate(RunConfig, merged(counting_values(run_dir), changes))


SLOW_PLACES = (
    "e2e/test_commands_on_pages.py",
    "e2e/test_own_parts.py",
    "e2e/test_tutorial.py",
    "e2e",
    "chaos",
    "dashboards",
    "security",
    "deploy",
    "compose",
    "clusters",
    "learner/evaluation",
    "crossborder/sweeps",
    "learner/loop/test_run.py",
    "learner/loop/test_in_turns.py",
    "learner/loop/test_offline.py",
    "learner/loop/test_learner_parts.py",
    "learner/test_resume.py",
    "common/agents",
    "test_conformance.py",
    "test_dependencies.py",
    "test_fork_server.py",
    "test_packaging.py",
)
"""Folders and files of tests that start processes, or train for seconds; the longest come first."""
SLOW_FIXTURES = {"start", "host", "make_config", "write_config"}
"""For tests with processes, and for whole runs."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a look for garbage: all modules and tests stay, and each look would go through all of them.

    On a new clone, one test process collects first: pytest compiles each file, and each process would do it again.
    """
    gc.disable()
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)  # It ends at the latest with the process that collects.
        found = yield
    gc.freeze()
    gc.enable()
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and begin with it: short tests that come last fill what time is left on every core."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(SLOW_PLACES)}

    @cache
    def place_of(file: Path) -> int:
        return min(places.get(path, len(places)) for path in (file, *file.parents))

    def place(item: pytest.Item) -> int:
        return place_of(item.path)

    for item in items:
        if place(item) < len(places) or not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    items.sort(key=place)


def handle_signals_as_at_first() -> None:
    """Forget each handler that a command has set, so that ``put_signals_back`` sets none of them again."""
    signals._handlers.clear()
    for number, action in SIGNALS.items():
        signal.signal(number, action)


@pytest.fixture(autouse=True)
def unchanged_process() -> Iterator[None]:
    """Undo what a command sets up for its process, where a test calls the command in the process of the tests.

    The log of the command goes to the stderr of that test, which pytest closes at the test's end. Threads that log
    later, those that read a child's output for example, would fail at it. The command ends with signals ignored, and
    children of later tests would inherit that.
    """
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    handle_signals_as_at_first()  # A fixture of a whole module may have called a command.
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook = hook
    handle_signals_as_at_first()


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """``counting_config`` in a directory of the test's own."""
    return partial(counting_config, tmp_path / "run")


@pytest.fixture
def host(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """A learner host with a real ingest process and no actors; nobody trains."""
    from learner.loop.server import LearnerServer  # It imports torch, which most helpers of this module do not need.

    with LearnerServer(make_config(server={"grace_seconds": 0.1})) as server:
        server.control.trainer_waits_for = MORE_STEPS
        yield server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """An empty disk of 64 MiB."""
    with mounted(tmp_path / "disk") as made:
        yield made


def entry_of(command: str) -> str:
    """``module:function`` of an installed command; another name is that of a module that Python runs."""
    return f"crossborder.commands:{command.replace('-', '_')}" if "-" in command else command


def python_of(command: str) -> list[str]:
    """Python as it starts a command or a module."""
    module, _, function = entry_of(command).partition(":")
    call = f"import sys; from {module} import {function}; sys.exit({function}())"
    return [sys.executable, *(("-c", call) if function else ("-m", module))]


FORK_SERVER = "CROSSBORDER_TESTS_FORK_SERVER"
"""The variable of the environment that gives its address to the test processes that share it."""


@cache
def fork_server() -> ForkServer:
    """The one that all test processes of this run share."""
    address = os.environ.get(FORK_SERVER)
    return ForkServer(bytes.fromhex(address)) if address else ForkServer.begin()


MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a directory in it that only this user can open
ROOM = 4 << 30
"""Bytes that the files of the tests that run at one time need."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of tests in memory if there is room, and start one fork server before the test processes.

    On a disk, the tests of runs would wait for fsync half of the time.
    """
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[FORK_SERVER] = fork_server().address.hex()


class Command:
    """A command as a real process, its output kept in a file.

    Args:
        name: of the command, such as ``learner-server``, or of another module that Python runs.
        prefix: words before it, of a program that starts it; only then Python itself is started too, and not forked.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        log: Path,
        python_path: Path = ROOT,
        cwd: Path = ROOT,
        prefix: Sequence[str] = (),
    ) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONPATH": str(python_path)}
        self.process: subprocess.Popen[bytes] | Forked
        if not prefix:
            self.process = fork_server().start(entry_of(name), arguments, log=log, cwd=cwd, environment=environment)
            return
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*prefix, *python_of(name), *arguments],
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def output(self) -> str:
        return self.log.read_text()

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s:\n{self.output()}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_another_thread(self, number: int) -> None:
        """Send a signal to another thread than the main one, whose wait it does not end; Linux may choose so too."""
        pid = self.process.pid
        _, another, *_ = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
        if ctypes.CDLL(None, use_errno=True).tgkill(pid, another, number):
            raise OSError(ctypes.get_errno(), "tgkill")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


STARTED = pytest.StashKey[list[Command]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of the commands that a failed test had started."""
    report = yield
    if report.failed:
        for command in item.stash.get(STARTED, []):
            report.sections.append((f"Output of {command.log.stem}", command.output()[-10_000:]))
    return report


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a command; commands that still run at the end of the test are killed."""
    commands: list[Command] = request.node.stash.setdefault(STARTED, [])

    def _start(name: str, *arguments: str, **places: Any) -> Command:
        log = tmp_path / f"command-{len(commands)}.log"
        command = Command(name, *arguments, log=log, **places)
        commands.append(command)
        return command

    yield _start
    for command in commands:
        command.end()


@pytest.fixture(scope="session", autouse=True)
def forked_children() -> Iterator[None]:
    """Fork the children of this process and of its commands from the fork server."""
    from tests.forked_children import forked_children  # It imports this module.

    with forked_children():
        yield


@pytest.fixture(scope="session", autouse=True)
def without_collections() -> Iterator[None]:
    """Let an acting service in this process look for no garbage at its start, nor thaw the tests at its end.

    The modules and tests of this process are so many objects that a look takes longer than most tests of a service.
    """
    serving = sys.modules.get("crossborder.serving.serving")
    with pytest.MonkeyPatch.context() as patch:
        if serving is not None:
            patch.setattr(serving, "gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int))
        yield


@pytest.fixture(autouse=True)
def own_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start them as users do, for tests with the mark ``own_children``."""
    if not request.node.get_closest_marker("own_children"):
        yield
        return
    from tests.forked_children import own_children

    with own_children():
        yield


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a counting run's YAML file; keyword arguments are laid over its sections."""

    def _write(**changes: Any) -> Path:
        path = tmp_path / "counting.yaml"
        path.write_text(yaml.safe_dump(merged(counting_values(tmp_path / "run"), changes)))
        return path

    return _write


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        if waited > seconds:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(min(0.02 + waited / 20, 0.2))  # A condition may ask a server: long waits ask less often.


def free_port(n: int = 1) -> int:
    """The first of n free ports in a row. They are this process's until it ends, though nobody listens there yet.

    They are below those that Linux gives to others. Tests of other processes, also of another run, leave them alone
    since a socket of this process has a name that says so.
    """
    random = SystemRandom()  # Python's own generator may be seeded alike in every test process.
    while not all(map(_reserve, ports := range(first := random.randrange(20_000, 32_000), first + n))):
        pass
    return ports[0]


def _reserve(port: int) -> bool:
    """Reserve a port if nobody has reserved it, and nobody listens there."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0crossborder-tests-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return False
    mark.detach()  # It stays open until this process ends.
    return True


def endpoints(run_dir: Path) -> dict[str, Any]:
    """The addresses of a run that has come up."""
    path = run_dir / "endpoints.json"
    wait_for(path.exists, "endpoints.json")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


HAS_ENDED = (FileNotFoundError, ProcessLookupError)
"""What reading a file below ``/proc/PID`` raises: before it is opened, and between its opening and its reading."""


def children_of(pid: int) -> list[int]:
    """Process ids of the direct children, the oldest first, whose id may be the largest: Linux counts from 300 anew."""
    found = ""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(*HAS_ENDED):  # A thread may end meanwhile.
            found += task.read_text()
    return sorted(map(int, found.split()), key=lambda child: int(_stat(child)[19]))


def descendants_of(pid: int) -> list[int]:
    """Process ids of the children, of their children and so on."""
    children = children_of(pid)
    return [*(below for child in children for below in descendants_of(child)), *children]


def named(name: str, pid: int) -> list[int]:
    """The descendants of a process that have this name in top(1): ``ingest``, or ``worker-0`` for a local actor."""
    found = []
    for below in descendants_of(pid):
        with contextlib.suppress(*HAS_ENDED):
            if Path(f"/proc/{below}/comm").read_text() == f"{name}\n" and is_alive(below):
                found.append(below)
    return found


def _stat(pid: int) -> list[str]:
    """The state of a process and the words after it in proc(5); a zombie's if it has ended: the 20th is its start."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except HAS_ENDED:
        return ["Z", *["0"] * 19]


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return _stat(pid)[0] != "Z"


def cores_of(pid: int) -> tuple[int, ...]:
    """The cores that a process may use, after a check that all its threads may use the same."""
    found = set[tuple[int, ...]]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # A thread may end meanwhile.
            found.add(tuple(sorted(os.sched_getaffinity(int(task.name)))))
    (cores,) = found
    return cores


def most_memory(pid: int) -> int:
    """The most bytes that a process ever was, shared ones included as far as it touched them."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def kill(pid: int) -> None:
    assert pid > 0, "any other number is that of a group, such as this process's own"
    os.kill(pid, signal.SIGKILL)


def kill_whole(pid: int) -> list[int]:
    """Kill a process and all below it, and return all of them. It goes first: it would start its children again."""
    killed = with_descendants(pid)
    signal_each(killed, signal.SIGKILL)
    return killed


def with_descendants(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *descendants_of(pid)]


def signal_each(pids: Sequence[int], number: int) -> None:
    """Send a signal to those of these processes that are there: the end of one may be that of others."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
