from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from common.errors import ChildFailedError
from common.process import fork_server
from common.process.child import Child
from common.process.fork_server import ForkServer
from learner.commands.standby import SERVER
from tests.common.process.child_scripts import MODULE
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, ROOT, children_of, is_alive, kill, wait_for

pytestmark = pytest.mark.own_children

MakeServer = Callable[..., ForkServer]


@pytest.fixture
def make_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeServer]:
    """Makes a fork server of children that run a function of ``child_scripts``; it ends with the test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made: list[ForkServer] = []

    def _make_server(module: str = MODULE) -> ForkServer:
        made.append(ForkServer([module]))
        return made[-1]

    yield _make_server
    for server in made:
        server.end()


@pytest.fixture
def start(make_server: MakeServer) -> Iterator[Callable[..., Child]]:
    """Starts children of one fork server; those that still run at the end are ended."""
    server, children = make_server(), list[Child]()

    def _start(life: str, **boot: object) -> Child:
        children.append(server.start_child(f"child-{life}", MODULE, {"life": life, **boot}))
        return children[-1]

    yield _start
    for child in children:
        child.end(0)


def test_children_are_forked_from_one_process_and_get_their_boot_lines(make_server: MakeServer) -> None:
    server = make_server()
    server.begin()
    forks = server.pid
    assert forks is not None
    boots = [{"life": "obedient", "text": "ü\n"}, {"life": "obedient"}]
    children = [server.start_child("child", MODULE, boot) for boot in boots]
    said = [child.next_event(PATIENCE) for child in children]
    assert said == [{"pid": child.pid, "boot": boot} for child, boot in zip(children, boots, strict=True)]
    assert children_of(forks) == [child.pid for child in children]
    assert [child.end(PATIENCE) for child in children] == [0, 0]
    server.end()
    assert not is_alive(forks)
    assert server.pid is None


def test_a_child_has_a_session_of_its_own_and_no_descriptor_of_another(start: Callable[..., Child]) -> None:
    first, second = start("obedient"), start("obedient")
    for child in (first, second):
        child.next_event(PATIENCE)
        assert os.getsid(child.pid) == child.pid
        assert len([*Path(f"/proc/{child.pid}/fd").iterdir()]) == 3
    assert first.end(PATIENCE) == 0, "its stdin closes, although the second child was forked later"
    assert second.poll() is None


def test_the_end_of_a_child_is_told_as_that_of_any_other(start: Callable[..., Child]) -> None:
    child = start("obedient")
    child.next_event(PATIENCE)
    assert child.poll() is None
    assert child.wait(0.0) is None
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert is_alive(child.pid) is False
    assert Path(f"/proc/{child.pid}").exists(), "it keeps its process id until it is ended"
    assert child.end(0) == -signal.SIGKILL
    wait_for(lambda: not Path(f"/proc/{child.pid}").exists(), "its id is released")
    assert child.poll() == -signal.SIGKILL


def test_a_child_may_be_looked_at_while_another_thread_ends_it(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    bystander, child = start("obedient"), start("obedient")
    looks, ask, codes = threading.Event(), fork_server._Requests.ask, list[int | None]()

    def ask_late(requests: Any, request: Any, fds: tuple[int, ...] = ()) -> Any:
        if threading.current_thread() is looking:
            looks.set()
            threading.Event().wait(1.0)  # Meanwhile the other thread would release the process's id.
        return ask(requests, request, fds)

    monkeypatch.setattr(fork_server._Requests, "ask", ask_late)
    looking = threading.Thread(target=lambda: codes.append(child.poll()))
    looking.start()
    assert looks.wait(PATIENCE)
    assert child.end(PATIENCE) == 0
    looking.join(PATIENCE)
    assert codes[0] in (None, 0)
    assert bystander.poll() is None, "the fork server lives, and so do its other children"


def test_a_thread_that_waits_for_an_answer_returns_when_another_thread_ends_the_fork_server(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "IMPORT_SECONDS", 10 * PATIENCE)
    server = make_server()
    child = server.start_child("child", MODULE, {"life": "obedient"})
    child.next_event(PATIENCE)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    asking = threading.Thread(target=child.poll)
    asking.start()
    requests = server._requests
    assert requests is not None
    wait_for(requests._lock.locked, "it asks")
    server.end()
    asking.join(PATIENCE)
    assert not asking.is_alive()
    assert child.end(0) == -signal.SIGKILL


def descriptors_of(pid: int) -> list[str]:
    return sorted(path.name for path in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("left", range(6))
def test_a_process_without_descriptors_for_a_child_keeps_none_of_them(make_server: MakeServer, left: int) -> None:
    server = make_server()
    server.start_child("child", MODULE, {"life": "obedient"}).end(PATIENCE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, descriptors_of(os.getpid()))) + left + 1, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        with pytest.raises(OSError, match="Too many open files"):
            server.start_child("child", MODULE, {"life": "obedient"})
        taken += [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("left", range(3))
def test_a_fork_server_without_descriptors_for_a_child_says_so_and_goes_on(make_server: MakeServer, left: int) -> None:
    server = make_server()
    server.start_child("child", MODULE, {"life": "obedient"}).end(PATIENCE)
    assert server.pid is not None
    before = descriptors_of(server.pid)
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    free = [number for number in range(100) if str(number) not in before]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (free[left], limits[1]))
    with pytest.raises(OSError, match="Too many open files"):
        server.start_child("child", MODULE, {"life": "obedient"})
    assert descriptors_of(server.pid) == before
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    assert server.start_child("child", MODULE, {"life": "obedient"}).end(PATIENCE) == 0


def test_children_draw_other_random_numbers_and_take_signals(start: Callable[..., Child]) -> None:
    said = [start("random").next_event(PATIENCE) for _ in range(2)]
    for source in ("python", "numpy"):
        assert said[0][source] != said[1][source], source
    assert said[0]["blocked"] == []


@pytest.mark.parametrize("module", ["actor.worker", "actor.remote_worker", "learner.ingest.ingest_child", SERVER])
def test_what_is_imported_leaves_no_thread_whose_locks_a_child_would_inherit(
    make_server: MakeServer, module: str
) -> None:
    server = make_server(module)
    child = server.start_child("child", module, {})
    assert len([*Path(f"/proc/{server.pid}/task").iterdir()]) == 1
    child.end(0)


def test_a_module_that_cannot_be_imported_is_an_error(make_server: MakeServer) -> None:
    with pytest.raises(ChildFailedError, match="ended with exit code 1"):
        make_server("no_such_module").start_child("child", "no_such_module", {})


def test_when_the_fork_server_dies_its_children_die_and_the_next_child_has_another_one(
    make_server: MakeServer,
) -> None:
    server = make_server()
    child = server.start_child("child", MODULE, {"life": "obedient"})
    child.next_event(PATIENCE)
    first = server.pid
    assert first is not None
    kill(first)
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert child.end(0) == -signal.SIGKILL
    wait_for(lambda: not is_alive(child.pid), "the kernel kills it")
    wait_for(lambda: not is_alive(first), "the end of the fork server")
    following = server.start_child("child", MODULE, {"life": "obedient"})
    assert following.next_event(PATIENCE)["pid"] == following.pid
    assert server.pid not in (None, first)
    assert following.end(PATIENCE) == 0


def test_a_fork_server_that_is_killed_while_it_is_asked_for_a_child_is_replaced(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    server.begin()
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        asks = threads.submit(server.start_child, "child", MODULE, {"life": "obedient"})
        kill(first)
        child = asks.result(PATIENCE)
    assert child.next_event(PATIENCE)["pid"] == child.pid
    assert server.pid not in (None, first)
    assert child.end(PATIENCE) == 0
    assert "fork-server ended with exit code -9, before child was there; another one is started" in caplog.text


def test_when_the_parent_is_killed_children_end_in_order_and_the_fork_server_after_them(
    start_child: StartChild, tmp_path: Path
) -> None:
    goodbye = tmp_path / "goodbye"
    parent = start_child("parent_of_forked", path=str(goodbye))
    said = parent.next_event(PATIENCE)
    server, child = said["server"], said["child"]
    kill(parent.pid)
    wait_for(lambda: not is_alive(child), "its stdin has closed")
    wait_for(lambda: not is_alive(server), "it has no child left")
    assert goodbye.read_text() == "in order"


def test_when_the_parent_is_killed_a_child_that_is_stopped_ends_too(start_child: StartChild) -> None:
    parent = start_child("parent_of_stopped")
    said = parent.next_event(PATIENCE)
    kill(parent.pid)
    wait_for(lambda: not is_alive(said["child"]), "the kernel kills it")
    wait_for(lambda: not is_alive(said["server"]), "the fork server has ended before")


def test_a_child_starts_in_the_directory_in_which_its_server_was_made(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An environment of the parent may have changed the directory since."""
    monkeypatch.chdir(tmp_path)
    server = make_server()
    monkeypatch.chdir(ROOT)
    child = server.start_child("child", MODULE, {"life": "obedient"})
    assert Path(f"/proc/{child.pid}/cwd").readlink() == tmp_path
    child.end(PATIENCE)
