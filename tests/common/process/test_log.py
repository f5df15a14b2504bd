from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from common.process.log import LogFormat, LogThrottle, RateFilter, TextFormatter, escape, quiet_grpc, quote, relog
from tests.conftest import ROOT


def written(setup: str, call: str = "warning('look out')", returns: int = 0) -> str:
    """The lines that a process writes to stderr."""
    logger = "logging.getLogger('deep.inside')"
    lines = ("import logging", "from common.process.log import setup_logging", setup, f"{logger}.{call}")
    code = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == returns, done.stderr
    return done.stderr


def match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def test_a_line_of_text_has_time_level_and_logger() -> None:
    assert match(r"\d\d:\d\d:\d\d WARNING deep\.inside: look out\n", written("setup_logging()"))


def test_a_line_of_json_is_one_object() -> None:
    entry = json.loads(written("setup_logging(form='json')"))
    assert entry.keys() == {"time", "level", "logger", "message"}
    assert (entry["level"], entry["logger"], entry["message"]) == ("WARNING", "deep.inside", "look out")
    assert match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])


IDENTIFY = "from common.process.log import identify; identify(run_id='1a2b', actor_id=3)"


def test_an_actor_that_has_joined_is_named_in_each_of_its_lines() -> None:
    line = written(f"setup_logging(); {IDENTIFY}")
    assert match(r"\d\d:\d\d:\d\d WARNING \[run 1a2b actor 3\] deep\.inside: look out\n", line)
    entry = json.loads(written(f"setup_logging(form='json'); {IDENTIFY}"))
    assert (entry["run_id"], entry["actor_id"], entry["message"]) == ("1a2b", 3, "look out")


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_actor_that_is_a_child_is_named_in_its_parents_log_too(form: str) -> None:
    said = json.dumps({**RECORD, "run_id": "1a2b", "actor_id": 3})
    line = written(
        f"from common.process.log import relog; setup_logging(form='{form}'); relog('worker-0', {said!r})", "debug('')"
    )
    if form == "text":
        assert line.endswith("WARNING [run 1a2b actor 3] worker-0.a.b: 100 %s\n")
    else:
        assert (json.loads(line)["run_id"], json.loads(line)["actor_id"]) == ("1a2b", 3)


def test_an_exception_is_part_of_its_object() -> None:
    (line,) = written(
        "setup_logging(form='json')", "error('it broke', exc_info=ZeroDivisionError('zero'))"
    ).splitlines()
    assert (json.loads(line)["message"], json.loads(line)["exception"]) == ("it broke", "ZeroDivisionError: zero")


def test_uncaught_exceptions_and_warnings_are_objects_too() -> None:
    died = written("setup_logging(form='json')", "parent and __import__('warnings').warn('old') or 1 / 0", returns=1)
    warned, ended = (json.loads(line) for line in died.splitlines())
    assert (warned["logger"], warned["level"]) == ("py.warnings", "WARNING")
    assert (ended["logger"], ended["level"], ended["message"]) == ("uncaught", "CRITICAL", "division by zero")
    assert ended["exception"].startswith("Traceback")


CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("crash", "code"),
    [(CRASH, -signal.SIGSEGV), (f"subprocess.run([sys.executable, '-c', 'import os, signal; {CRASH}'])", 0)],
    ids=["itself", "a Python that it starts"],
)
def test_a_process_in_which_native_code_crashes_writes_its_stack_and_ends_by_the_signal(crash: str, code: int) -> None:
    died = written("setup_logging(form='json')\nimport os, signal, subprocess, sys", f"debug({crash})", returns=code)
    assert died.startswith("Fatal Python error: Segmentation fault")
    assert 'File "<string>", line' in died


def test_other_threads_than_the_one_that_crashed_are_not_shown_in_children_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "crossborder")  # As a command leaves it to its children.
    other = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    died = written(
        f"setup_logging()\nimport os, signal, threading\n{other}", f"debug({CRASH})", returns=-signal.SIGSEGV
    )
    assert "Stack (most recent call first):" in died
    assert "hread 0x" not in died


def test_a_user_may_refuse_the_stack_of_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "")
    assert written("setup_logging()\nimport os, signal", f"debug({CRASH})", returns=-signal.SIGSEGV) == ""


def test_a_record_below_the_level_is_not_written() -> None:
    assert written("setup_logging('ERROR')") == ""
    assert json.loads(written("setup_logging('DEBUG', 'json')", "debug('d')"))["message"] == "d"


def test_of_an_installed_library_only_warnings_are_written_unless_all_is_asked_for(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "chatty.py"
    library.parent.mkdir()
    said = ("info('found credentials')", "warning('look out')")
    library.write_text("\n".join(["import logging", *(f"logging.getLogger('chatty').{each}" for each in said)]))
    load = f"import sys; sys.path.append({str(library.parent)!r}); import chatty"
    told = written(f"setup_logging(); {load}", "info('of my own part')")
    assert re.findall(r"(\w+): (.*)\n", told) == [("chatty", "look out"), ("inside", "of my own part")]
    assert "found credentials" in written(f"setup_logging('DEBUG'); {load}")


def test_a_terminal_shares_its_screen_with_the_live_display() -> None:
    console = "from rich.console import Console; c = Console(stderr=True, width=100)"
    assert match(
        r"\d\d:\d\d:\d\d WARNING\s+deep\.inside: look out\s*\n", written(f"{console}; setup_logging(console=c)")
    )


RECORD = {"level": "WARNING", "logger": "a.b", "message": "100 %s"}


def test_a_record_of_a_child_is_logged_under_the_childs_name(caplog: pytest.LogCaptureFixture) -> None:
    relog("worker-3", json.dumps({**RECORD, "exception": "Traceback\n  here"}))
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == ("worker-3.a.b", logging.WARNING, "100 %s")
    assert record.exc_text == "Traceback\n  here"


def test_a_record_of_a_child_keeps_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    relog("worker-3", json.dumps({**RECORD, "time": "2026-11-22T03:17:05.125+00:00"}))
    assert caplog.records[0].created == datetime(2026, 11, 22, 3, 17, 5, 125_000, UTC).timestamp()


def test_a_librarys_record_whose_exception_is_no_text_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    relog("worker-3", json.dumps({**RECORD, "exception": [{"type": "OSError"}]}))
    assert "OSError" in caplog.text


def test_a_record_of_a_child_below_the_level_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "worker-3")
    relog("worker-3", json.dumps(RECORD))
    assert not caplog.records


@pytest.mark.parametrize(
    "line",
    [
        "100 % sure",
        "",
        "3.5",
        "[1]",
        "[" * 10_000,
        "{}",
        '{"level": "LOUD", "logger": "a", "message": ""}',
        '{"level": "INFO"}',
    ],
)
def test_other_lines_of_a_child_are_logged_as_information(caplog: pytest.LogCaptureFixture, line: str) -> None:
    caplog.set_level(logging.INFO, "worker-3")
    relog("worker-3", line)
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [("worker-3", logging.INFO, line)]


@pytest.mark.parametrize(("letter", "level"), [("I", logging.INFO), ("W", logging.WARNING), ("E", logging.ERROR)])
def test_a_line_of_grpcs_core_in_a_child_keeps_its_level(
    caplog: pytest.LogCaptureFixture, letter: str, level: int
) -> None:
    caplog.set_level(logging.INFO, "worker-3")
    relog("worker-3", f"{letter}1122 03:17:05.123456   71 chttp2_transport.cc:1403] Got goaway")
    assert caplog.records[0].levelno == level


@pytest.mark.parametrize(
    ("form", "given", "then"), [("json", "", "NONE"), ("text", "", "ERROR"), ("json", "INFO", "INFO")]
)
def test_grpcs_core_is_quiet_in_json_unless_its_variable_is_set(
    monkeypatch: pytest.MonkeyPatch, form: LogFormat, given: str, then: str
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", given)
    if not given:
        monkeypatch.delenv("GRPC_VERBOSITY")
    quiet_grpc(form)
    assert os.environ["GRPC_VERBOSITY"] == then


def test_a_throttled_message_is_due_once_in_an_interval_and_the_others_are_counted() -> None:
    now = 0.0
    seldom = LogThrottle(10.0, clock=lambda: now)
    assert [seldom.due() for _ in range(4)] == [0, None, None, None]
    now = 9.9
    assert seldom.due() is None
    now = 10.0
    assert [seldom.due(), seldom.due()] == [4, None]


def test_a_strangers_text_cannot_look_like_our_log() -> None:
    forged = "it broke\n12:00:00 INFO learner: all is well\r\x1b[2J\u202e\x85next"
    said = ["| it broke", "| 12:00:00 INFO learner: all is well", "| \\x1b[2J\\u202e", "| next"]
    assert quote(forged).splitlines() == said


def test_lines_beyond_a_rate_are_left_out_and_counted_in_the_next_one() -> None:
    now = [0.0]
    at_most = RateFilter(rate=1.0, at_once=2, clock=lambda: now[0])

    def passes(level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("any", level, "", 0, "from %s", ("there",), None)
        return record.getMessage() if at_most.filter(record) else None

    assert [passes() for _ in range(4)] == ["from there", "from there", None, None]
    now[0] = 1.0
    assert passes() == "from there (2 lines before it were left out)"
    assert passes() is None
    assert passes(logging.CRITICAL) is not None, "the last words of a process are heard"


FORGED = "\x1b[2Ja\x1b[31mb\x1b[0m\u202e\r12:00:00 INFO    actor: all is well\n12:00:00 INFO    actor: all is well"


def test_no_text_in_a_record_looks_like_another_record_or_is_obeyed_by_a_terminal() -> None:
    record = logging.LogRecord("actor", logging.WARNING, "", 0, "joined %s", (FORGED,), None)
    try:
        raise ValueError(FORGED)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *others = TextFormatter("12:00:01 %(levelname)s %(message)s").format(record).split("\n")
    assert first == "12:00:01 WARNING joined \\x1b[2Jab\\u202e"
    assert len(others) > 2
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_a_text_is_put_on_one_line_with_its_control_characters_escaped() -> None:
    assert escape("plain, ü and 漢") == "plain, ü and 漢"
    assert escape(FORGED).startswith("\\x1b[2Jab\\u202e\\r12:00:00 INFO")
    assert escape(FORGED).isprintable()
