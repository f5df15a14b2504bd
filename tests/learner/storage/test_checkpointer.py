"""Checkpoints are copied between two opt steps and written beside training, however long that takes."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from common.errors import CheckpointError
from common.lanes.building import spec_of
from common.parts import row_schema
from crossborder.testing.play import play
from crossborder.testing.row_memory import rows_of
from examples.own_parts import Corridor, TabularQ
from learner.loop.run_records import RecordWindow
from learner.replay.memory import ReplayMemory
from learner.replay.recovery import Watermark
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from learner.storage.checkpoint import Saves
from learner.storage.checkpointer import WINDOW, Checkpointer
from learner.storage.training_state import Moment, RunState, StateFiles, read_newest_state, read_newest_watermark
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE


class GatedFiles(StateFiles):
    """A disk that is as slow as the test wants."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {"run_id": "run"}, keep=9, saves=Saves())
        self.begun, self.gate = threading.Event(), threading.Event()

    def write(self, state: RunState, watermark: Watermark | None = None) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        super().write(state, watermark)


class FullFiles(StateFiles):
    """A disk without room."""

    def write(self, state: RunState, watermark: Watermark | None = None) -> None:
        raise CheckpointError("no space left on device")


class Scene:
    """An agent that learns from 64 steps, and a clock that the test sets."""

    def __init__(
        self, directory: Path, files: StateFiles, seconds: float | None = 10.0, rows: int | None = None
    ) -> None:
        env = Corridor()
        schema = row_schema(spec_of(env))
        memory = ReplayMemory(directory / "replay", schema, 100, create=not (directory / "replay").exists())
        self.memory, self._writer, self._played = memory, ReplayWriter(memory), rows_of(schema, play(env, 64))
        if not memory.committed:
            self.store(schema.count(self._played))
        self.agent = TabularQ(spec_of(env), seed=0, epsilon=0.0, device="cpu")
        self.buffer = UniformReplay(memory, Transitions(schema), seed=0)
        self.now, self.opt_steps = 0.0, 0
        self.window = RecordWindow(self.buffer, lambda: self.now)
        self.checkpointer = Checkpointer(
            files,
            self.agent,
            {"buffer": self.buffer, WINDOW: self.window},
            "cpu",
            newest=Moment(0, 0, 0.0),
            seconds=seconds,
            rows=rows,
            replay=memory,
            clock=lambda: self.now,
        )

    def store(self, count: int) -> None:
        """Store so many rows."""
        rows = {name: column[:count] for name, column in self._played.items()}
        self._writer.append(rows, count, incarnation=1, seq=self._writer.last_seq(1) + 1)

    def step(self, at: float) -> None:
        """An opt step that ends at this time, and what comes after it."""
        self.now = at
        self.agent.opt(self.buffer)
        self.opt_steps += 1
        self.checkpointer.tick(Moment(self.opt_steps, self.buffer.inserted, self.now))

    def finish(self) -> bool:
        return self.checkpointer.finish(Moment(self.opt_steps, self.buffer.inserted, self.now))


def newest(directory: Path) -> RunState:
    """The newest checkpoint in a directory."""
    found = read_newest_state(directory, "run")
    assert found is not None
    return found


def test_training_goes_on_while_a_state_is_written_and_the_state_stays_as_it_was(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path / "checkpoints")
    scene = Scene(tmp_path, files)
    scene.step(at=9.0)
    assert not files.begun.is_set(), "not due yet"
    scene.step(at=10.0)
    assert files.begun.wait(PATIENCE)
    table, drawn = scene.agent.table.clone(), scene.buffer.sampled
    for at in (30.0, 50.0):
        scene.step(at)  # Nothing is on disk yet.
    assert not torch.equal(table, scene.agent.table)
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))
    files.gate.set()
    scene.finish()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4"], "one at a time"
    values = json.loads((tmp_path / "checkpoints" / "2" / "state.json").read_text())
    assert values["buffer"]["sampled"] == drawn
    (tmp_path / "checkpoints" / "4").rename(tmp_path / "4")
    state = newest(tmp_path / "checkpoints")
    assert state.moment == Moment(2, 64, 10.0)
    assert torch.equal(state.agent().tensors["table"], table)


def test_a_state_is_due_after_so_many_rows_too_and_waits_for_the_one_before(tmp_path: Path) -> None:
    files = GatedFiles(tmp_path / "checkpoints")
    files.gate.set()
    scene = Scene(tmp_path, files, rows=20)
    for rows in (19, 1, 19, 1, 50, 1):
        scene.store(rows)
        scene.step(at=1.0)
    scene.finish()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "5", "6"]


def test_the_replay_is_synced_before_a_state_is_written_which_says_how_far_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StateFiles(tmp_path / "checkpoints", {"run_id": "run"}, keep=1, saves=Saves())
    synced = list[Path]()
    monkeypatch.setattr("learner.replay.memory.sync", synced.append)
    scene = Scene(tmp_path, files)
    scene.step(at=10.0)
    scene.finish()
    assert {path.name for path in synced} >= {"header", "cursors", "batches", "column-obs", "column-reward"}
    rows = scene.memory.committed
    assert rows > 64, "final rows are among them"
    assert read_newest_watermark(tmp_path / "checkpoints", "run") == Watermark(0, rows, 64, 1, [(1, 1, rows)])


def test_a_full_disk_does_not_end_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path, FullFiles(tmp_path / "checkpoints", {"run_id": "run"}, keep=1, saves=Saves()))
    scene.step(at=10.0)
    assert not scene.finish()
    assert "training goes on without this checkpoint: no space left on device" in caplog.messages


def test_the_last_state_is_written_although_the_one_before_takes_longer_than_the_first_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("learner.storage.checkpointer.WRITE_SECONDS", 0.0)
    files = GatedFiles(tmp_path / "checkpoints")
    scene = Scene(tmp_path, files)
    scene.step(at=10.0)
    assert files.begun.wait(PATIENCE)
    scene.step(at=11.0)
    assert not scene.finish()
    assert "the last checkpoint, of opt step 2, is not taken" in caplog.messages
    waits = list[float]()
    join = threading.Thread.join

    def open_gate_at_the_second_wait(thread: threading.Thread, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= 2:
            files.gate.set()
            join(thread, PATIENCE)

    monkeypatch.setattr(threading.Thread, "join", open_gate_at_the_second_wait)
    assert scene.finish()
    assert newest(tmp_path / "checkpoints").opt_steps == 2


def test_a_diverged_agent_or_loss_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = StateFiles(tmp_path / "states", {"run_id": "run"}, keep=9, saves=Saves())
    scene = Scene(tmp_path, files)
    scene.step(at=11.0)
    scene.checkpointer.finish(Moment(1, scene.buffer.inserted, 11.0))
    scene.window.add({"loss": math.nan})
    scene.checkpointer.finish(Moment(2, scene.buffer.inserted, 12.0))
    scene.window.means()
    scene.agent.table[0, 0] = math.nan
    scene.checkpointer.finish(Moment(3, scene.buffer.inserted, 13.0))
    assert newest(tmp_path / "states").opt_steps == 1
    assert [record.getMessage().rpartition(" in ")[2] for record in caplog.records if record.levelname == "ERROR"] == [
        "loss",
        "agent.table",
    ]
    assert files.saves.failures == 2, "an alert tells of them"


def test_a_replay_that_cannot_be_synced_counts_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = StateFiles(tmp_path / "states", {"run_id": "run"}, keep=9, saves=Saves())
    scene = Scene(tmp_path, files)
    monkeypatch.setattr("learner.replay.memory.sync", fail)
    scene.step(at=11.0)
    scene.finish()
    assert files.saves.failures == 1
    told = f"{tmp_path / 'states'}: cannot be saved: [Errno 5] Input/output error"
    assert f"training goes on without this checkpoint: {told}" in caplog.messages


def test_a_directory_that_is_gone_is_told_and_not_that_a_file_in_it_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise CheckpointError("the directory was removed")

    scene = Scene(tmp_path, StateFiles(tmp_path / "states", {"run_id": "run"}, Saves(refuse)))
    shutil.rmtree(scene.memory.directory)
    scene.step(at=11.0)
    scene.finish()
    assert "training goes on without this checkpoint: the directory was removed" in caplog.messages


def test_an_agent_without_its_own_training_state_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Scene(tmp_path, StateFiles(tmp_path / "checkpoints", {"run_id": "run"}, keep=1, saves=Saves()))
    assert "TabularQ has no training_state(): --resume restores its save_params() only" in caplog.messages
