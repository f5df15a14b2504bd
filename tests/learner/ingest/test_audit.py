from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from learner.ingest.audit import (
    INTERVAL_SECONDS,
    LINES_AT_ONCE,
    MAX_KINDS,
    MAX_TEXT,
    N_OLD_FILES,
    STRANGER,
    STRANGERS_LINES_AT_ONCE,
    STRANGERS_LINES_PER_SECOND,
    AuditLog,
)
from tests.clocks import Clock
from tests.conftest import PATIENCE, ROOT
from tests.disks import Disk


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audit(path: Path, clock: Clock) -> AuditLog:
    return AuditLog(path, clock=clock)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_one_private_line_with_its_time(audit: AuditLog, path: Path) -> None:
    audit.note("join", "ok", name="alice", pid=7)
    (entry,) = entries(path)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {"event": "join", "outcome": "ok", "name": "alice", "pid": 7}
    assert path.stat().st_mode & 0o777 == 0o600


def test_equal_events_of_an_interval_are_counted_in_one_line(audit: AuditLog, path: Path, clock: Clock) -> None:
    for _ in range(3):
        for _ in range(300):
            audit.note("refused", "unauthenticated", peer="10.0.0.1")
            audit.tick()
        clock.now += INTERVAL_SECONDS
        audit.tick()
    assert [entry.get("count") for entry in entries(path)] == [None, 299, 300, 300]
    clock.now += INTERVAL_SECONDS
    audit.tick()
    audit.note("refused", "unauthenticated", peer="10.0.0.1")
    assert len(entries(path)) == 5, "after a quiet interval an event is written at once again"


def test_lines_beyond_the_rate_are_left_out_and_the_next_line_tells_how_many(
    audit: AuditLog, path: Path, clock: Clock
) -> None:
    for pid in range(LINES_AT_ONCE + 50):
        audit.note("join", "ok", pid=pid)
    assert len(entries(path)) == LINES_AT_ONCE
    clock.now += INTERVAL_SECONDS
    audit.tick()
    audit.note("join", "ok", pid=-1)
    assert entries(path)[-1]["events_left_out"] == 50


def test_long_texts_are_cut_and_line_breaks_make_no_further_line(audit: AuditLog, path: Path) -> None:
    audit.note("join", "ok", host="x\n" * 1000)
    (entry,) = entries(path)
    assert len(entry["host"]) == MAX_TEXT


def test_the_oldest_file_is_overwritten_so_that_the_log_is_bounded(path: Path, clock: Clock) -> None:
    audit = AuditLog(path, max_bytes=200, clock=clock)
    for pid in range(100):
        audit.note("join", "ok", pid=pid)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [path.name, *(f"{path.name}.{i + 1}" for i in range(N_OLD_FILES))]
    assert all(file.stat().st_size <= 200 for file in files)
    assert entries(path)[-1]["pid"] == 99


WRITING = """
import os, sys
from pathlib import Path
from learner.ingest import audit

audit.N_OLD_FILES = 400
path, lines, writer = sys.argv[1:]
log = audit.AuditLog(Path(path), max_bytes=2000)
os.write(1, b".")
os.read(0, 1)
for pid in range(int(lines)):
    log.note("join", "ok", writer=writer, pid=pid)
"""


def test_processes_that_write_the_same_file_lose_no_line_when_it_is_full(path: Path) -> None:
    writers, lines = "abcd", 1000
    (ready, is_ready), (gate, opens_gate) = os.pipe(), os.pipe()
    words = [sys.executable, "-c", WRITING, str(path), str(lines)]
    processes = [subprocess.Popen([*words, name], cwd=ROOT, stdin=gate, stdout=is_ready) for name in writers]
    for _ in writers:
        assert os.read(ready, 1) == b"."
    os.write(opens_gate, len(writers) * b".")
    assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0, 0]
    for fd in (ready, is_ready, gate, opens_gate):
        os.close(fd)
    older = list(path.parent.glob(f"{path.name}.*"))
    found = [(entry["writer"], entry["pid"]) for file in (path, *older) for entry in entries(file)]
    assert sorted(found) == [(writer, pid) for writer in writers for pid in range(lines)]
    assert all(file.stat().st_size > 1800 for file in older), "only full files were set aside"


def test_an_audit_log_that_cannot_be_written_is_logged_and_stops_nothing(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    AuditLog(path / "nowhere", clock=clock).note("join", "ok")
    assert "cannot be written: No such file or directory" in caplog.text


def test_on_a_full_disk_no_line_is_torn_and_later_lines_are_written(
    disk: Disk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(disk.path / "audit.jsonl", clock=clock)
    audit.note("join", "ok", pid=0)
    disk.fill()
    for pid in range(1, 100):
        audit.note("join", "ok", pid=pid, host="x" * MAX_TEXT)
    assert "cannot be written: No space left on device" in caplog.text
    disk.clear()
    audit.note("join", "ok", pid=100)
    pids = [entry["pid"] for entry in entries(disk.path / "audit.jsonl")]
    assert pids == [*range(len(pids) - 1), 100]


def test_however_many_calls_strangers_make_the_lines_about_others_are_written(
    audit: AuditLog, path: Path, clock: Clock
) -> None:
    for turn in range(20):
        for i in range(2 * MAX_KINDS):
            audit.note("refused", STRANGER, peer=f"10.{turn}.{i // 256}.{i % 256}")
        audit.note("drain", "ok", name="alice", turn=turn)
        clock.now += INTERVAL_SECONDS
        audit.tick()
    events = [entry["event"] for entry in entries(path)]
    assert events.count("drain") == 20
    assert 0 < events.count("refused") <= STRANGERS_LINES_AT_ONCE + 20 * INTERVAL_SECONDS * STRANGERS_LINES_PER_SECOND


def test_however_many_lines_one_name_makes_those_about_admins_and_other_names_are_written(
    audit: AuditLog, path: Path, clock: Clock
) -> None:
    for turn in range(20):
        for i in range(2 * MAX_KINDS):
            audit.note("refused", "bad_items", method="/Join", role="actor", name="mallory", reason=f"{turn} {i}")
        audit.note("admin", "ok", method="/Drain", role="admin", name="mallory", turn=turn)  # Of an admin's token.
        audit.note("join", "ok", method="/Join", role="actor", name="alice", turn=turn)
        audit.note("revoked", "ok", role="actor", name="mallory", turn=turn)
        clock.now += INTERVAL_SECONDS
        audit.tick()
    events = [entry["event"] for entry in entries(path)]
    assert [events.count(event) for event in ("admin", "join", "revoked")] == [20, 20, 20]
    assert events.count("refused") < 40 * MAX_KINDS / 2


def test_without_a_file_the_events_are_in_the_log_of_the_process(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    AuditLog(None, clock=clock).note("refused", "unauthenticated", peer="10.0.0.5")
    assert '"event": "refused"' in caplog.text
    assert '"peer": "10.0.0.5"' in caplog.text
