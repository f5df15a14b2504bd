"""A look at the files of a run's replay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.data import PRIORITY, Column, Schema
from common.errors import RunDirectoryError
from crossborder.inspecting.inspection import Inspection, ValueHistogram
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, Record
from learner.replay.writer import ReplayWriter
from learner.shared.actor_table import ActorState, map_actor_table
from learner.shared.control import ControlBlock
from learner.storage.rundir import list_states
from tests.learner.datasets.saved import save_replay
from tests.learner.replay.memories import linked_rows, make, open_linked, rows

RATED = Schema((Column("reward", "<f4"), Column("obs", "<f4", (2,)), PRIORITY))


def filled(run: Path, count: int) -> None:
    _, writer = make(run / "shared")
    for start in range(count):
        writer.append(rows(start, 1), 1, incarnation=7, seq=start + 1)


def test_size_and_extent_are_those_of_the_files(tmp_path: Path) -> None:
    filled(tmp_path, 14)
    found = Inspection(tmp_path).summary()
    extent = {
        "capacity": 10,
        "rows": 10,
        "drawable": 10,
        "fill": 1.0,
        "rows_stored": 14,
        "steps_stored": 14,
        "first": 4,
    }
    assert found.items() >= extent.items()
    assert (found["row_bytes"], found["oldest_seconds"]) == (16, None)


def test_steps_are_counted_beside_rows(tmp_path: Path) -> None:
    memory = open_linked(tmp_path / "shared", create=True)
    ReplayWriter(memory).append(linked_rows(0, 30), 30, incarnation=7, seq=1)
    found = Inspection(tmp_path).summary()
    assert (found["rows"], found["rows_stored"], found["steps_stored"], found["drawable"]) == (30, 30, 24, 24)


def test_a_histogram_has_no_final_rows(tmp_path: Path) -> None:
    schema = Schema.of_rows((Column("reward", "<f4"),))
    memory = ReplayMemory(tmp_path / "shared" / "replay", schema, 10, create=True)
    final = np.array([False, False, True, False])
    unused = np.zeros(4, np.uint16)
    items = {
        "reward": np.where(final, 0, 1),
        "version": unused,
        "first": np.array([True, False, False, True]),
        "final": final,
        "lane": unused,
    }
    ReplayWriter(memory).append(items, 4, incarnation=7, seq=1)
    found = Inspection(tmp_path).histograms()["reward"]
    assert (found.n, found.low, found.high) == (3, 1.0, 1.0)


def test_the_newest_rows_come_first(tmp_path: Path) -> None:
    filled(tmp_path, 14)
    found = Inspection(tmp_path).newest(2)
    assert found == [{"index": 13, "n": 13, "pair": [13.0, 13.0]}, {"index": 12, "n": 12, "pair": [12.0, 12.0]}]
    assert [row["index"] for row in Inspection(tmp_path).newest(50)] == list(range(13, 3, -1))


def test_actors_are_listed_by_what_they_have_stored_and_tell_how_old_the_oldest_row_is(tmp_path: Path) -> None:
    filled(tmp_path, 14)
    table, control = (
        map_actor_table(tmp_path / "shared", create=True),
        ControlBlock.open(tmp_path / "shared", create=True),
    )
    for row, items in ((0, 4), (5, 10)):
        table[row]["state"], table[row]["items"], table[row]["host"] = ActorState.LEFT, items, f"cpu-{row}"
    table[5]["last_seen"], control.oldest_item_at = 90.0, 60.0
    inspection = Inspection(tmp_path)
    assert [(actor["host"], actor["items"], actor["state"]) for actor in inspection.actors()] == [
        ("cpu-5", 10, "left"),
        ("cpu-0", 4, "left"),
    ]
    assert inspection.summary()["oldest_seconds"] == 30.0


def test_rewards_first_priorities_and_the_priorities_of_the_newest_checkpoint_are_counted(tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "shared" / "replay", RATED, 10, create=True)
    items = {"reward": np.arange(4.0), "obs": np.zeros((4, 2)), "priority": np.full(4, 2.0)}
    ReplayWriter(memory).append(items, 4, incarnation=7, seq=1)
    assert set(Inspection(tmp_path).histograms()) == {"reward", "first priority"}
    for opt_steps, priority in ((9, 1.0), (10, 3.0)):
        state = tmp_path / "checkpoints" / str(opt_steps)
        state.mkdir(parents=True)
        save_file({"buffer.priorities": np.full(4, priority)}, state / "state.safetensors")
    (tmp_path / "checkpoints" / "12.bak").mkdir()
    found = Inspection(tmp_path).histograms()
    assert {name: (one.n, one.mean) for name, one in found.items()} == {
        "reward": (4, 1.5),
        "first priority": (4, 2.0),
        "priority": (4, 3.0),
    }


def test_a_checkpoint_that_the_learner_removes_meanwhile_makes_room_for_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_replay(tmp_path, 4)

    def save(opt_steps: int) -> None:
        state = tmp_path / "checkpoints" / str(opt_steps)
        state.mkdir(parents=True)
        save_file({"buffer.priorities": np.full(4, float(opt_steps))}, state / "state.safetensors")

    def find(run: Path) -> list[Path]:
        found = list_states(run)
        if (run / "checkpoints" / "1").exists():
            shutil.rmtree(run / "checkpoints" / "1")
            save(2)
        return found

    save(1)
    monkeypatch.setattr("crossborder.inspecting.inspection.list_states", find)
    assert Inspection(tmp_path).histograms()["priority"].mean == 2.0


def test_the_priorities_of_each_source_are_counted_by_themselves(tmp_path: Path) -> None:
    save_replay(tmp_path, 4)
    state = tmp_path / "checkpoints" / "7"
    state.mkdir(parents=True)
    of_source = np.array([2.0] * 9 + [0.0] * 5)  # At the last five no draw can begin.
    kept = {"buffer.0:priorities": np.ones(4), "buffer.1:priorities": of_source, "buffer.1:ready": np.ones(2)}
    save_file(kept, state / "state.safetensors")
    (state / "state.json").write_text('{"buffer": {"sources": {"actors": {}, "demo.dataset": {}}}}')
    found = Inspection(tmp_path).histograms()
    assert {name: (histogram.n, histogram.mean) for name, histogram in found.items()} == {
        "priority": (4, 1.0),
        "priority of demo.dataset": (9, 2.0),
    }


def test_the_priorities_are_those_of_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_replay(tmp_path, 4)
    for opt_steps in 1, 2:
        (tmp_path / "checkpoints" / str(opt_steps)).mkdir(parents=True)
        state = tmp_path / "checkpoints" / str(opt_steps) / "state.safetensors"
        save_file({"buffer.priorities": np.full(4, float(opt_steps))}, state)
    os.truncate(state, 10)
    assert Inspection(tmp_path).histograms()["priority"].mean == 1.0
    assert f"{state}: cannot be read" in caplog.text


def test_the_quarantine_of_both_processes_is_shown_newest_first(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    for writer, message in (("ingest", "the first"), ("trainer", "the second")):
        quarantine = Quarantine(tmp_path / "shared", writer)  # type: ignore[arg-type]
        quarantine.add(Record("found bad", message))
        quarantine.write()
    assert [record["message"] for record in Inspection(tmp_path).quarantine()] == ["the second", "the first"]


def test_nothing_is_written(tmp_path: Path) -> None:
    filled(tmp_path, 14)
    with pytest.raises(ValueError, match="read-only"):
        Inspection(tmp_path).memory.columns["pair"][0] = 1.0


def test_a_directory_without_a_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no readable replay memory"):
        Inspection(tmp_path)


@pytest.mark.parametrize(("values", "last"), [([1e9] * 3, 0), ([1e6, 1e6, 1e6 + 0.0625], 1), ([1e9, 1e9 - 64.0], 1)])
def test_a_histogram_counts_large_values_that_are_close_together(values: list[float], last: int) -> None:
    found = ValueHistogram.of(np.array(values, np.float32))
    assert found is not None
    assert (sum(found.counts), found.counts[-1]) == (len(values), last)


def test_a_histogram_counts_every_value_also_equal_ones() -> None:
    assert ValueHistogram.of(np.empty(0)) is None
    same = ValueHistogram.of(np.full(7, 3.0))
    assert same is not None
    assert (sum(same.counts), same.low, same.high) == (7, 3.0, 3.0)
    assert same.edges()[-1] == pytest.approx(4.0)
    spread = ValueHistogram.of(np.arange(100.0))
    assert spread is not None
    assert spread.counts == [5] * 20


def test_values_that_are_not_finite_are_counted_apart() -> None:
    found = ValueHistogram.of(np.array([1.0, np.nan, 3.0, -np.inf]))
    assert found is not None
    assert (found.n, found.n_nonfinite, found.mean, found.low, found.high) == (2, 2, 2.0, 1.0, 3.0)
    assert ValueHistogram.of(np.full(2, np.nan)) is None
