from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.process.child import Child
from common.process.fork_server_child import NAME
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, is_alive, kill, wait_for

pytestmark = pytest.mark.own_children

Said = tuple[dict[str, Any], dict[str, Any], Child]


@pytest.fixture
def here(start_child: StartChild, tmp_path: Path) -> Callable[..., Said]:
    """A process that forks a fork server from itself, and what it has said of the life and of the end of a child."""

    def _here(*, threaded: bool = False, raises: bool = False) -> Said:
        child = {"life": "looking_around", "path": str(tmp_path), "raises": raises}
        parent = start_child("parent_here", threaded=threaded, child=child)
        return parent.next_event(PATIENCE), parent.next_event(PATIENCE), parent

    return _here


def test_a_fork_server_that_is_forked_from_a_command_shares_imports_and_nothing_else(
    here: Callable[..., Said], tmp_path: Path
) -> None:
    life, end, _ = here()
    assert life["has_imported"]
    assert life["said"] == {
        "descriptors": [0, 1, 2],
        "handlers": [str(signal.default_int_handler), str(signal.SIG_DFL)],
        "shows_crashes": False,
        "log": 0,
        "has_colorsys": True,
        "collects": True,
        "name": "forked",
    }
    assert Path(f"/proc/{life['server']}/comm").read_text().strip() == NAME
    assert end == {"is_its_own": True, "code": 7}
    assert (tmp_path / "thread").read_text() == "waited for"
    assert (tmp_path / "atexit").read_text() == "called"
    assert not (tmp_path / "finalizer").exists()


def test_the_exception_of_a_child_of_a_command_is_its_end_alone(
    here: Callable[..., Said],
) -> None:
    _, end, parent = here(raises=True)
    assert end["code"] == 1
    parent.tell({"still": "there"})
    assert parent.next_event(PATIENCE) == {"heard": {"still": "there"}}


def test_a_child_ends_with_its_exit_code_although_it_has_left_a_thread_behind(start_child: StartChild) -> None:
    assert start_child("parent_of_lingering").next_event(PATIENCE) == {"code": 7}


def test_a_command_with_another_thread_has_python_started_for_the_fork_server(
    here: Callable[..., Said],
) -> None:
    life, end, _ = here(threaded=True)
    assert not life["has_imported"]
    assert not life["said"]["has_colorsys"]
    assert life["said"]["descriptors"] == [0, 1, 2]
    assert end["code"] == 7


def test_when_a_command_is_killed_the_fork_server_that_it_forked_ends(
    here: Callable[..., Said],
) -> None:
    life, _, parent = here()
    kill(parent.pid)
    wait_for(lambda: not is_alive(life["server"]), "nobody asks it any more")
