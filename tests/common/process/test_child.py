from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import AddressError, ChildFailedError, ConfigError, CrossborderError
from common.process.child import KEEP_BUFFERS, Child, RestartPolicy, Supervisor
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, ROOT, is_alive, kill, wait_for


def supervise(
    start: Callable[[], Child],
    failures: list[CrossborderError],
    times: int = 2,
    finished: frozenset[int] = frozenset({0}),
) -> Supervisor:
    return Supervisor(start, failures.append, finished, RestartPolicy(times))


# One child.


def test_a_child_gets_its_boot_line_and_its_events_arrive_in_order(start_child: StartChild) -> None:
    child = start_child("obedient", numbers=[1, 2], text="ü\n")
    hello = child.next_event(PATIENCE)
    assert hello == {"pid": child.pid, "boot": {"life": "obedient", "numbers": [1, 2], "text": "ü\n"}}
    child.close_stdin()
    assert child.next_event(PATIENCE) == {"goodbye": True}
    assert child.wait(PATIENCE) == 0


def test_a_child_can_be_told_more_while_it_runs(start_child: StartChild) -> None:
    child = start_child("listening")
    for words in ({"number": 1}, {"text": "ü\n"}):
        child.tell(words)
        assert child.next_event(PATIENCE) == {"heard": words}
    assert child.end(PATIENCE) == 0


def test_a_line_to_a_child_that_has_ended_is_warned_of(
    start_child: StartChild, caplog: pytest.LogCaptureFixture
) -> None:
    child = start_child("silent", code=0)
    child.wait(PATIENCE)
    child.tell({"number": 1})
    child.end(PATIENCE)
    child.tell({"number": 2})
    assert caplog.messages == ["child-silent has ended: a message to it is lost"] * 2


def test_an_error_that_a_child_reports_is_raised_with_its_class(start_child: StartChild) -> None:
    child = start_child("reporting", error="port 1 is taken", code=AddressError.exit_code)
    with pytest.raises(AddressError, match=r"^port 1 is taken$"):
        child.next_event(PATIENCE)
    assert child.wait(PATIENCE) == AddressError.exit_code


@pytest.mark.parametrize(("life", "code"), [("silent", 3), ("silent", 0), ("shot", -signal.SIGKILL)])
def test_a_child_that_dies_without_a_word_has_failed_with_its_exit_code(
    start_child: StartChild, life: str, code: int
) -> None:
    with pytest.raises(ChildFailedError, match=f"child-{life} ended with exit code {code:d}"):
        start_child(life, code=code).next_event(PATIENCE)


def test_a_child_that_says_nothing_in_time_has_failed_but_still_runs(start_child: StartChild) -> None:
    child = start_child("stubborn")
    child.next_event(PATIENCE)
    with pytest.raises(ChildFailedError, match=r"child-stubborn did not answer within 0\.01 s"):
        child.next_event(0.01)
    assert child.poll() is None


def test_an_obedient_child_ends_itself_with_its_own_exit_code(start_child: StartChild) -> None:
    child = start_child("obedient")
    child.next_event(PATIENCE)
    assert child.poll() is None
    assert child.end(PATIENCE) == 0
    assert child.next_event(PATIENCE) == {"goodbye": True}


def test_a_child_that_ignores_its_stdin_is_killed(start_child: StartChild, caplog: pytest.LogCaptureFixture) -> None:
    child = start_child("stubborn")
    child.next_event(PATIENCE)
    assert child.wait(0) is None
    assert child.end(0.1) == -signal.SIGKILL
    assert not is_alive(child.pid)
    assert "child-stubborn did not end within 0.1 s and is killed" in caplog.messages


def test_a_child_that_has_ended_can_be_ended_again(start_child: StartChild) -> None:
    child = start_child("obedient")
    assert child.end(PATIENCE) == child.end(PATIENCE) == 0


def test_no_child_outlives_a_parent_that_was_killed(start_child: StartChild) -> None:
    parent = start_child("parent")
    grandchild = parent.next_event(PATIENCE)["grandchild"]
    assert is_alive(grandchild)
    kill(parent.pid)
    wait_for(lambda: not is_alive(grandchild), "the grandchild's end")


def test_the_log_of_a_child_is_passed_on_record_by_record(
    start_child: StartChild, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "child-logging_")
    assert start_child("logging_").end(PATIENCE) == 0
    records = [record for record in caplog.records if record.name == "child-logging_.deep.inside"]
    assert [(record.levelno, record.getMessage()) for record in records] == [
        (logging.INFO, "all is well"),
        (logging.WARNING, "not so well"),
        (logging.ERROR, "it broke"),
        (logging.INFO, "well again"),
    ]
    assert records[2].exc_text is not None
    assert records[2].exc_text.endswith("RuntimeError: broken")


@pytest.mark.parametrize("line", ["A library greets you.", "3.5", "[1, 2]", '"error"', '{"error": "x"}', "null"])
def test_a_line_that_is_no_event_is_logged_and_does_no_harm(
    start_child: StartChild, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    caplog.set_level(logging.INFO, "child-chatty")
    assert start_child("chatty", line=line).next_event(PATIENCE) == {"after": "greeting"}
    assert [r.getMessage() for r in caplog.records if r.name == "child-chatty"] == [
        line,
        "\N{REPLACEMENT CHARACTER} no text",
    ]


def test_processes_that_a_child_has_started_end_with_it(start_child: StartChild) -> None:
    child = start_child("simulating")
    helper = child.next_event(PATIENCE)["helper"]
    assert child.end(PATIENCE) == -signal.SIGKILL
    wait_for(lambda: not is_alive(helper), "the helper's end")


def test_a_child_has_our_environment_variables_and_additional_ones(
    start_child: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "ours")
    given = {"GIVEN": "given"}
    assert start_child("environment", variable="OURS", env=given).next_event(PATIENCE)["value"] == "ours"
    assert start_child("environment", variable="GIVEN", env=given).next_event(PATIENCE)["value"] == "given"
    assert "GIVEN" not in os.environ


def test_a_child_runs_in_a_session_of_its_own_where_ctrl_c_does_not_reach_it(start_child: StartChild) -> None:
    event = start_child("environment", variable="HOME").next_event(PATIENCE)
    assert event["session"] == event["pid"] != os.getsid(0)


def test_a_child_inherits_the_file_descriptors_it_is_passed(start_child: StartChild) -> None:
    read_end, write_end = os.pipe()
    child = start_child("descriptor", fd=write_end, fds=(write_end,))
    os.close(write_end)
    assert os.read(read_end, 2) == b"x"
    assert child.wait(PATIENCE) == 0
    os.close(read_end)


def test_a_package_in_the_current_directory_does_not_hide_ours(
    start_child: StartChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    assert start_child("obedient", env={"PYTHONPATH": str(ROOT)}).next_event(PATIENCE)


# Restarts.


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


def test_a_killed_child_is_started_again(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("obedient"), failures)
    first = supervisor.child.next_event(PATIENCE)["pid"]
    kill(first)
    wait_for(lambda: supervisor.restarts == 1, "the restart")
    assert supervisor.child.next_event(PATIENCE)["pid"] != first
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


def test_a_child_may_end_once_it_is_no_longer_watched(start_child: StartChild) -> None:
    failures: list[CrossborderError] = []
    supervisor = supervise(lambda: start_child("obedient"), failures)
    supervisor.stop_watching()
    kill(supervisor.child.pid)
    supervisor.wait()
    assert supervisor.child.wait(PATIENCE) == -signal.SIGKILL
    assert (supervisor.restarts, failures) == (0, [])


# Memory.

FREE_AND_FILL_AGAIN = """
import resource
from common.process.child import keep_buffers

keep_buffers()
bytes(32 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(b"x") * (32 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_process_that_keeps_its_buffers_fills_freed_memory_without_page_faults() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_BUFFERS}
    command = [sys.executable, "-c", FREE_AND_FILL_AGAIN]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 * (32 << 20) / 4096 / 2
