from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from common.errors import AddressError, ChildFailedError, ConfigError, CrossborderError
from common.process.child import Child, RestartPolicy
from common.process.supervisor import Supervisor
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, kill, wait_for


def supervise(
    start: Callable[[], Child],
    failures: list[CrossborderError],
    times: int = 2,
    finished: frozenset[int] = frozenset({0}),
) -> Supervisor:
    return Supervisor(start, failures.append, finished, RestartPolicy(times))


# One child.


def test_a_killed_child_is_started_again(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("obedient"), failures)
    first = supervisor.child.next_event(PATIENCE)["pid"]
    kill(first)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    assert supervisor.child.next_event(PATIENCE)["pid"] != first
    supervisor.stop_watching()
    assert failures == []


def test_a_child_that_ends_itself_at_its_second_signal_is_started_again(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    lives = iter([start_child("silent", code=128 + signal.SIGTERM), start_child("obedient")])
    supervisor = supervise(lambda: next(lives), failures)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    supervisor.stop_watching()
    assert failures == []


def test_a_child_that_hangs_is_killed_and_started_again(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    hung: set[int] = set()
    children: list[Child] = []

    def start() -> Child:
        children.append(start_child("obedient"))
        return children[-1]

    supervisor = Supervisor(start, failures.append, is_hung=lambda: children[-1].pid in hung)
    os.kill(children[0].pid, signal.SIGSTOP)
    hung.add(children[0].pid)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    assert children[0].poll() == -signal.SIGKILL
    children[1].next_event(PATIENCE)
    supervisor.stop_watching()
    assert failures == []


def test_a_child_that_reports_an_error_of_ours_is_not_started_again(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("reporting", error="no such key", code=ConfigError.exit_code), failures)
    supervisor.wait()
    assert supervisor.restarts == 0
    assert [(type(error), str(error)) for error in failures] == [(ConfigError, "no such key")]


@pytest.mark.parametrize(("life", "code"), [("silent", 1), ("silent", 6), ("shot", -signal.SIGKILL)])
def test_a_child_that_keeps_dying_is_given_up(start_child: StartChild, life: str, code: int) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child(life, code=code), failures, times=2)
    supervisor.wait()
    assert supervisor.restarts == 2
    assert [(type(e), str(e)) for e in failures] == [(ChildFailedError, f"child-{life} ended with exit code {code:d}")]


def test_a_child_that_lost_the_disk_of_its_mapped_files_is_named_in_words(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervise(lambda: start_child("cut_short"), failures, times=0).wait()
    (error,) = failures
    assert "ended with exit code -7 (SIGBUS: a file that it maps was cut short" in str(error)


def test_a_child_that_has_finished_is_left_alone(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("silent", code=0), failures)
    supervisor.wait()
    assert (supervisor.restarts, failures) == (0, [])


def test_a_child_that_may_never_finish_is_started_again_after_exit_code_0(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("silent", code=0), failures, times=1, finished=frozenset())
    supervisor.wait()
    assert supervisor.restarts == 1
    assert [type(error) for error in failures] == [ChildFailedError]


def test_a_restart_that_fails_is_given_up_with_its_reason(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    reason = AddressError("taken meanwhile")
    lives = iter(["shot"])

    def start() -> Child:
        for life in lives:
            return start_child(life)
        raise reason

    supervise(start, failures).wait()
    assert failures == [reason]


def test_a_child_that_dies_while_it_is_started_again_is_started_once_more(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    lives = iter(["shot", "dies at the start", "obedient"])

    def start() -> Child:
        life = next(lives)
        if life == "dies at the start":
            raise ChildFailedError("it ended with exit code -9")
        return start_child(life, code=-signal.SIGKILL)

    supervisor = supervise(start, failures)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    supervisor.child.next_event(PATIENCE)
    supervisor.stop_watching()
    assert failures == []


def test_a_restart_waits_for_files_that_cannot_be_used_and_names_each_reason_once(
    start_child: StartChild, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[CrossborderError] = []
    tries = iter(["shot", "no key", "no key", "another key", "obedient"])

    def start() -> Child:
        life = next(tries)
        if "key" in life:
            raise ConfigError(life)
        return start_child(life, code=-signal.SIGKILL)

    supervisor = supervise(start, failures, times=1)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    supervisor.child.next_event(PATIENCE)
    supervisor.stop_watching()
    assert failures == []
    reasons = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    said = "child-shot is started again once its files can be used: "
    assert reasons == [f"{said}no key", f"{said}another key"]


def test_a_restart_that_waits_for_files_ends_when_nobody_watches_any_more(start_child: StartChild) -> None:
    lives, waits = iter(["shot"]), threading.Event()

    def start() -> Child:
        for life in lives:
            return start_child(life, code=-signal.SIGKILL)
        waits.set()
        raise ConfigError("no key")

    supervisor = supervise(start, [])
    assert waits.wait(PATIENCE)
    supervisor.stop_watching()
    assert supervisor.wait(0)


def test_the_first_start_does_not_wait_for_files() -> None:
    def start() -> Child:
        raise ConfigError("no key")

    with pytest.raises(ConfigError, match="no key"):
        supervise(start, [])


def test_children_that_a_signal_ends_before_the_last_is_asked_to_stop_are_not_started_again(
    start_child: StartChild,
) -> None:
    failures: list[CrossborderError] = []
    supervisors = [supervise(lambda: start_child("obedient"), failures) for _ in range(2)]
    children = [supervisor.child for supervisor in supervisors]
    for supervisor in supervisors:
        supervisor.stop_restarting()
    for child in children:
        kill(child.next_event(PATIENCE)["pid"])
        assert child.wait(PATIENCE) == -signal.SIGKILL
    for supervisor in supervisors:
        supervisor.stop_watching()
    assert [supervisor.child for supervisor in supervisors] == children
    assert failures == []


def test_a_child_may_end_once_it_is_no_longer_watched(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("obedient"), failures)
    supervisor.stop_watching()
    kill(supervisor.child.pid)
    supervisor.wait()
    assert supervisor.child.wait(PATIENCE) == -signal.SIGKILL
    assert (supervisor.restarts, failures) == (0, [])


def test_restarts_are_allowed_up_to_a_number_in_a_span_of_time() -> None:
    now = 0.0
    policy = RestartPolicy(times=3, seconds=60.0, clock=lambda: now)
    assert [policy.allows() for _ in range(4)] == [True, True, True, False]
    now = 60.0
    assert not policy.allows()
    now = 60.5
    assert [policy.allows() for _ in range(4)] == [True, True, True, False]


def test_a_refused_restart_does_not_count() -> None:
    now = 0.0
    policy = RestartPolicy(times=1, seconds=10.0, clock=lambda: now)
    assert policy.allows()
    now = 9.0
    assert not policy.allows()
    now = 11.0
    assert policy.allows()
