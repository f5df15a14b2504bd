from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import CrossborderError
from common.process.child import Child, RestartPolicy
from common.process.spare import Spare
from common.process.supervisor import Supervisor
from tests.common.process.child_scripts import MODULE
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, ROOT, is_alive, kill, wait_for

pytestmark = pytest.mark.own_children

MakeSpare = Callable[..., Spare]


@pytest.fixture
def make_spare(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeSpare]:
    """Makes the spare of children that run a function of ``child_scripts``; it and its children end with the test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made: list[Spare] = []
    children: list[Child] = []

    def _make_spare(**options: Any) -> Spare:
        spare = Spare("child", MODULE, **options)
        start = spare.start_child
        spare.start_child = lambda boot: children.append(start(boot)) or children[-1]  # type: ignore[method-assign, func-returns-value]
        made.append(spare)
        return spare

    yield _make_spare
    for spare in made:
        spare.end()
    for child in children:
        child.end(0)


def warm_pid(spare: Spare) -> int:
    """The id of the spare's process, when it has imported everything."""
    wait_for(lambda: spare.is_warm, "the spare is warm")
    assert spare.pid is not None
    return spare.pid


def test_a_warm_spare_is_the_next_child_and_gets_the_boot_line(make_spare: MakeSpare) -> None:
    spare = make_spare(imports=["json", "csv"])
    spare.keep_ready()
    pid = warm_pid(spare)
    spare.keep_ready()
    assert spare.pid == pid, "there is one spare"
    boot = {"life": "obedient", "text": "ü\n"}
    assert spare.start_child(boot).next_event(PATIENCE) == {"pid": pid, "boot": boot}
    assert spare.pid is None


def test_a_child_that_was_a_spare_has_our_priority(make_spare: MakeSpare) -> None:
    spare = make_spare()
    spare.keep_ready()
    warm_pid(spare)
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert spare.start_child({"life": "priority"}).next_event(PATIENCE) == {"priority": ours}


def test_a_spare_that_still_imports_is_not_waited_for(make_spare: MakeSpare) -> None:
    spare = make_spare()
    spare.keep_ready()
    slow = spare.pid
    assert slow is not None
    child = spare.start_child({"life": "obedient"})
    assert child.next_event(PATIENCE)["pid"] != slow
    assert not is_alive(slow)


def test_a_spare_that_died_is_replaced_until_it_dies_too_often(
    make_spare: MakeSpare, caplog: pytest.LogCaptureFixture
) -> None:
    spare = make_spare(policy=RestartPolicy(times=1))
    for expected in (True, False):
        spare.keep_ready()
        pid = warm_pid(spare)
        kill(pid)
        wait_for(lambda pid=pid: not is_alive(pid), "its end")  # type: ignore[misc]
        spare.keep_ready()
        assert (spare.pid is not None) == expected
    spare.keep_ready()
    assert spare.pid is None
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [
        *["the spare of child ended with exit code -9"] * 2,
        "the spare of child keeps failing: no more spares are started",
    ]


def test_without_a_spare_that_can_be_started_there_is_none(
    make_spare: MakeSpare, caplog: pytest.LogCaptureFixture
) -> None:
    spare = make_spare(policy=RestartPolicy(times=1), imports=["x" * (1 << 20)])
    for _ in range(3):
        spare.keep_ready()
        assert spare.pid is None
    first, second, given_up = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert first == second
    assert "the spare of child cannot be started: [Errno 7]" in first
    assert given_up == "the spare of child keeps failing: no more spares are started"


def test_no_spare_outlives_its_parent(start_child: StartChild) -> None:
    parent = start_child("parent_of_spare")
    spare = parent.next_event(PATIENCE)["spare"]
    assert is_alive(spare)
    kill(parent.pid)
    wait_for(lambda: not is_alive(spare), "the spare ends itself")


def test_a_supervisor_takes_the_spare_for_a_dead_child_and_ends_it_when_it_stops_watching(
    make_spare: MakeSpare,
) -> None:
    spare, failures = make_spare(), list[CrossborderError]()
    supervisor = Supervisor(lambda: spare.start_child({"life": "obedient"}), failures.append, spare=spare)
    wait_for(lambda: spare.is_warm, "the spare")
    first, second = supervisor.child.pid, warm_pid(spare)
    kill(first)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    assert supervisor.child.pid == second
    wait_for(lambda: spare.pid not in (None, second), "the next spare")
    third = spare.pid
    assert third is not None
    supervisor.stop_watching()
    assert not is_alive(third)
    assert failures == []


def test_a_child_starts_in_the_directory_in_which_its_spare_was_made(
    make_spare: MakeSpare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An environment of the parent may have changed the directory since."""
    monkeypatch.chdir(tmp_path)
    spare = make_spare()
    monkeypatch.chdir(ROOT)
    child = spare.start_child({"life": "obedient"})
    assert Path(f"/proc/{child.pid}/cwd").readlink() == tmp_path
    spare.keep_ready()
    assert Path(f"/proc/{spare.pid}/cwd").readlink() == tmp_path
