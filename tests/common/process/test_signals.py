from __future__ import annotations

import os
import signal

import pytest

from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_for_an_orderly_end(start_child: StartChild, number: int, code: int) -> None:
    child = start_child("signalled", orderly=True, prompt=True, echo_seconds=0)
    assert child.next_event(PATIENCE) == {"exit_code_before": 0}
    os.kill(child.pid, number)
    assert child.next_event(PATIENCE) == {"asked": True}
    assert child.wait(PATIENCE) == code


def test_a_second_signal_ends_at_once(start_child: StartChild) -> None:
    child = start_child("signalled", orderly=True, prompt=False, echo_seconds=0)
    child.next_event(PATIENCE)
    os.kill(child.pid, signal.SIGTERM)
    assert child.next_event(PATIENCE) == {"asked": True}
    assert child.poll() is None
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(PATIENCE) == 130
    assert child.events.empty(), "it was not asked again"


def test_a_signal_that_comes_twice_at_one_time_is_one_request(start_child: StartChild) -> None:
    child = start_child("signalled", orderly=True, prompt=False, echo_seconds=3600)
    child.next_event(PATIENCE)
    os.kill(child.pid, signal.SIGTERM)
    assert child.next_event(PATIENCE) == {"asked": True}
    os.kill(child.pid, signal.SIGINT)
    child.tell({})
    assert child.wait(PATIENCE) == 143
    assert child.events.empty(), "it was not asked again"


def test_a_signal_before_there_is_an_orderly_end_ends_at_once(start_child: StartChild) -> None:
    child = start_child("signalled", orderly=False, prompt=False, echo_seconds=0)
    child.next_event(PATIENCE)
    os.kill(child.pid, signal.SIGTERM)
    assert child.next_event(PATIENCE) == {"interrupted": True}
    assert child.wait(PATIENCE) == 143


@pytest.mark.parametrize("holds", [False, True], ids=["swallowed", "held"])
def test_a_signal_that_led_to_nothing_ends_the_command_once_it_can_end_in_order(
    start_child: StartChild, *, holds: bool
) -> None:
    child = start_child("swallowing", holds=holds)
    assert child.next_event(PATIENCE) == {"received": signal.SIGTERM}
    assert child.wait(PATIENCE) == 143


@pytest.mark.parametrize("language", ["Python", "C"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_library_that_takes_the_signals_does_not_keep_them(
    start_child: StartChild, number: int, code: int, language: str
) -> None:
    child = start_child("robbed", language=language)
    child.next_event(PATIENCE)
    os.kill(child.pid, number)
    assert child.wait(PATIENCE) == code


@pytest.mark.parametrize(("ignores", "code"), [(True, 5), (False, -signal.SIGTERM)])
def test_a_signal_after_the_exit_code_is_decided_changes_nothing(
    start_child: StartChild, *, ignores: bool, code: int
) -> None:
    """Python removes our handlers before it has exited; then a signal that is not ignored kills the process."""
    assert start_child("late", ignores=ignores).wait(PATIENCE) == code


def test_a_child_that_leaves_signals_to_its_parent_ends_when_its_stdin_closes(start_child: StartChild) -> None:
    child = start_child("leaving")
    child.next_event(PATIENCE)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, number)
    child.tell({"number": 1})
    assert child.next_event(PATIENCE) == {"heard": {"number": 1}}
    assert child.end(PATIENCE) == 0


@pytest.mark.parametrize("leaves", [False, True], ids=["handled", "left to the parent"])
def test_a_process_that_users_code_forks_ends_by_sigterm_and_by_no_signal_of_a_terminal(
    start_child: StartChild, *, leaves: bool
) -> None:
    child = start_child("forking", leaves=leaves, patience=PATIENCE)
    assert child.next_event(PATIENCE) == {"after_others": "still there"}
    assert child.next_event(PATIENCE) == {"codes": [-signal.SIGTERM, -signal.SIGTERM]}
