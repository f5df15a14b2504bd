from __future__ import annotations

import errno
import logging
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from common.errors import AddressError, ChildFailedError
from common.process.child import KEEP_BUFFERS, Child
from tests.common.process.conftest import StartChild
from tests.conftest import PATIENCE, ROOT, is_alive, kill, wait_for


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


def test_a_child_learns_that_its_stdin_is_closed_without_reading_its_lines(start_child: StartChild) -> None:
    child = start_child("waiting")
    child.tell({"number": 1})
    assert child.next_event(PATIENCE) == {"is_closed": False}
    child.close_stdin()
    assert child.next_event(PATIENCE) == {"is_closed": True}


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


def test_an_error_is_raised_with_its_class_though_a_busy_host_reads_it_late(
    start_child: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Child._take

    def take_late(child: Child, line: str) -> None:
        child.wait(PATIENCE)
        time.sleep(2.0)  # The busy host itself.
        take(child, line)

    monkeypatch.setattr(Child, "_take", take_late)
    child = start_child("reporting", error="port 1 is taken", code=AddressError.exit_code)
    assert child.wait(PATIENCE) == AddressError.exit_code
    assert isinstance(child.error(), AddressError)


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
    assert child.wait(-1.0) is None, "time that is over already is no reason to wait for ever"
    assert child.end(0.1) == -signal.SIGKILL
    assert not is_alive(child.pid)
    assert "child-stubborn has not ended in time and is killed" in caplog.messages


def test_a_child_that_has_ended_can_be_ended_again(start_child: StartChild) -> None:
    child = start_child("obedient")
    assert child.end(PATIENCE) == child.end(PATIENCE) == 0


def no_descriptor(_: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("is_in_python", [False, True])
def test_a_child_is_waited_for_where_python_or_the_kernel_has_no_descriptors_of_processes(
    start_child: StartChild, monkeypatch: pytest.MonkeyPatch, *, is_in_python: bool
) -> None:
    if is_in_python:
        monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    child = start_child("stubborn")
    child.next_event(PATIENCE)
    assert child.wait(0.1) is None
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("seconds", [1e7, math.inf])
def test_a_child_may_be_waited_for_during_months(start_child: StartChild, seconds: float) -> None:
    assert start_child("silent", code=3).wait(seconds) == 3


def test_a_signal_to_a_child_whose_process_id_another_thread_has_just_released_is_no_error(
    start_child: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def released(pid: int, number: int) -> None:
        raise ProcessLookupError(pid, number)

    child = start_child("stubborn")
    child.next_event(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", released)
        child.signal(signal.SIGTERM)
    assert child.wait(0) is None


@pytest.mark.parametrize("touch", [Child.poll, Child.kill, Child.error, partial(Child.signal, number=signal.SIGTERM)])
def test_a_child_that_has_ended_keeps_its_process_id_until_end_is_called(
    start_child: StartChild, touch: Callable[[Child], object]
) -> None:
    """If another process had the id, ``end`` would kill that process and its group."""
    child = start_child("silent", code=3)
    assert child.wait(PATIENCE) == 3
    touch(child)
    assert Path(f"/proc/{child.pid}").exists()
    assert child.end(PATIENCE) == child.poll() == 3
    assert not Path(f"/proc/{child.pid}").exists()


def test_the_second_end_of_a_child_signals_no_group(start_child: StartChild, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: signalled.append(group))
    child = start_child("silent", code=0)
    child.end(PATIENCE)
    child.end(PATIENCE)
    assert signalled == [child.pid]


def test_a_child_that_the_kernel_cannot_end_yet_is_named_and_left(
    start_child: StartChild, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wait(timeout: float) -> int:
        raise subprocess.TimeoutExpired("silent", timeout)

    child = start_child("silent", code=0)
    with monkeypatch.context() as patch:
        patch.setattr(child._process, "wait", wait)
        assert child.end(0) == -signal.SIGKILL
    assert f"child-silent (process {child.pid}) was killed and has not ended" in caplog.text


def test_processes_of_a_child_that_was_seen_to_end_are_ended_too(start_child: StartChild) -> None:
    child = start_child("simulating")
    helper = child.next_event(PATIENCE)["helper"]
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL
    child.end(PATIENCE)
    wait_for(lambda: not is_alive(helper), "the helper's end")


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


@pytest.mark.parametrize(
    "line", ["A library greets you.", "3.5", "[1, 2]", '"error"', '{"error": "x"}', "null", "[" * 10_000]
)
def test_a_line_that_is_no_event_is_logged_and_does_no_harm(
    start_child: StartChild, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    caplog.set_level(logging.INFO, "child-chatty")
    assert start_child("chatty", line=line).next_event(PATIENCE) == {"after": "greeting"}
    assert [r.getMessage() for r in caplog.records if r.name == "child-chatty"] == [
        line,
        "\N{REPLACEMENT CHARACTER} no text",
    ]


def test_an_event_arrives_although_a_part_has_left_a_line_open(
    start_child: StartChild, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "child-dotting")
    child = start_child("dotting")
    assert child.next_event(PATIENCE) == {"dots": 1}
    assert child.next_event(PATIENCE) == {"dots": 2}
    assert child.end(PATIENCE) == 0
    assert [r.getMessage() for r in caplog.records if r.name == "child-dotting"] == [".", "."]


def test_an_event_arrives_although_a_part_has_closed_stdout(
    start_child: StartChild, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "child-closing")
    child = start_child("closing")
    assert child.next_event(PATIENCE) == {"closed": False}
    assert child.end(PATIENCE) == 0
    assert [r.getMessage() for r in caplog.records if r.name == "child-closing"] == ["still there"]


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


FILL_IN_TURN = """
import sys
import threading
from pathlib import Path
from common.process.child import keep_buffers

if sys.argv[1] == "forked":
    keep_buffers(is_child=True)

def own_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

before, done = own_mib(), threading.Event()
for _ in range(16):
    filled = threading.Event()
    def fill():
        bytearray(b"x") * (16 << 20)
        filled.set()
        done.wait(60)
    threading.Thread(target=fill, daemon=True).start()
    filled.wait(60)
print(own_mib() - before)
done.set()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("way", ["started", "forked"])
def test_a_child_keeps_what_threads_have_freed_for_two_of_them_and_not_for_each(way: str) -> None:
    command = [sys.executable, "-c", FILL_IN_TURN, way]
    others = {name: value for name, value in os.environ.items() if name not in KEEP_BUFFERS}
    environment = others | (KEEP_BUFFERS if way == "started" else {})
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * 16
