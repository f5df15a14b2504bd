"""Copies of runs, finished and going on, from which the run is resumed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import RunDirectoryError
from crossborder.inspecting import backup
from crossborder.inspecting.backup import _copy_replay, back_up
from crossborder.inspecting.replay_inspect import main
from learner.ingest.cordons import Cordons, Selection
from learner.loop.in_turns import train_in_turns
from learner.loop.server import LearnerServer, train_async
from learner.replay.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory
from learner.replay.ratio import LiveRatio
from learner.replay.writer import ReplayWriter
from learner.shared.control import ControlBlock
from learner.storage.checkpoint import load_params
from learner.storage.rundir import list_states
from tests.conftest import Command, wait_for
from tests.e2e.test_by_hand import ENDLESS
from tests.learner.loop.test_run import IN_TURNS, configured, replay_of
from tests.learner.replay.memories import check_links, next_linked, next_rows, open_linked, previous_rows
from tests.parts import check_rows


def contents(memory: ReplayMemory) -> dict[str, Any]:
    """The rows that count, by column."""
    slots = np.arange(memory.first(), memory.committed) % memory.n_slots
    return {name: column[slots] for name, column in memory.columns.items()}


def has_stored(run: Path, rows: int) -> bool:
    """Whether so many rows have come and there is a best policy."""
    return (run / "best").exists() and replay_of(run).committed > rows


def test_a_run_that_is_going_on_is_copied_again_and_again_and_each_copy_is_resumed(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trainer = {**ENDLESS, "checkpoint_seconds": 0.01, "eval_interval": 5}
    replay = {"capacity": 2000, "samples_per_insert": 4}  # It is overwritten all the while.
    parts = {"agent": IN_TURNS, "evaluator": {"target": "tests.parts:StepsEvaluator"}}
    config = write_config(trainer=trainer, replay=replay, **parts)
    server = start("learner-server", "--config", str(config), "--local-actors", "1")
    copies: list[tuple[Path, int, int]] = []
    for number in range(3):
        before = replay_of(copies[-1][0]).committed if copies else 0
        wait_for(partial(has_stored, run, before + 2000), "rows")
        copied = back_up(run, tmp_path / f"copy-{number}")
        copies.append((tmp_path / f"copy-{number}", copied.opt_steps, copied.rows))
        assert server.process.poll() is None
    server.end()
    for copy, opt_steps, rows in copies:
        memory = replay_of(copy)
        assert len(memory) == rows > 0
        check_rows(contents(memory))
        score = json.loads((copy / "best" / "meta.json").read_text())["score"]
        result = train_async(configured(copy, opt_steps + 20, replay=replay, **parts), 1, resume=True)
        assert result.opt_steps == opt_steps + 20
        assert result.best_score >= score
        assert json.loads((copy / "run.json").read_text())["incarnation"] > 1
        assert replay_of(copy).committed > memory.began + rows


def test_a_policy_that_was_being_replaced_when_the_run_was_killed_is_copied(tmp_path: Path) -> None:
    run = train_in_turns(configured(tmp_path / "run", 20)).run_dir
    shutil.copytree(run / "final", run / ".best.old")
    shutil.rmtree(run / "best", ignore_errors=True)
    back_up(run, tmp_path / "copy")
    assert load_params(tmp_path / "copy" / "best")[1]["opt_steps"] == 20


def test_the_copy_has_the_models_that_play_as_opponents_and_the_results_of_games(tmp_path: Path) -> None:
    run = train_in_turns(configured(tmp_path / "run", 20)).run_dir
    (run / "pool").mkdir()
    for name in ("1-0.safetensors", "1-10.safetensors", "games.json"):
        (run / "pool" / name).write_text(name)
    back_up(run, tmp_path / "copy")
    found = {path.name: path.read_text() for path in (tmp_path / "copy" / "pool").iterdir()}
    assert found == {name: name for name in ("1-0.safetensors", "1-10.safetensors", "games.json")}


def test_a_disk_without_room_for_the_copy_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, copy_file = train_in_turns(configured(tmp_path / "run", 20)).run_dir, shutil.copyfile

    def copy_while_there_is_room(source: str, to: Path, **named: Any) -> object:
        if Path(to).name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy_file(source, to, **named)

    monkeypatch.setattr(shutil, "copyfile", copy_while_there_is_room)
    with pytest.raises(RunDirectoryError, match=r"cannot be copied there: .*No space left on device"):
        back_up(run, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_copy_has_the_same_rows_under_the_same_numbers_with_the_same_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_in_turns(configured(tmp_path / "run", 300, replay={"capacity": 100})).run_dir
    assert main([str(run), "--export", str(tmp_path / "copy")]) == 0
    assert "copy: a copy of" in capsys.readouterr().out
    original, copy = replay_of(run), replay_of(tmp_path / "copy")
    assert (copy.first(), copy.committed) == (original.first(), original.committed)
    assert (copy.steps, copy.drawable) == (original.steps, original.drawable)
    check_links(copy)
    np.testing.assert_equal(contents(copy), contents(original))
    assert [state.name for state in list_states(tmp_path / "copy")] == ["300"]


def test_a_copy_of_a_run_in_turns_goes_on_as_the_run_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {
        "env": {"target": "tests.frame_parts:filmed_counting_env", "frame_stack": 4},
        "agent": {"target": "tests.frame_parts:FilmCritic", "params": {"in_turns": True}},
        "replay": {"capacity": 200},
    }
    run = train_in_turns(configured(tmp_path / "run", 500, **parts)).run_dir
    back_up(run, tmp_path / "copy")
    ends = []
    for directory in (run, tmp_path / "copy"):
        assert train_in_turns(configured(directory, 600, **parts), resume=True).opt_steps == 600
        ends.append(replay_of(directory))
    assert "the replay cannot go back" not in caplog.text
    original, copy = ends
    assert (copy.first(), copy.committed, copy.steps) == (original.first(), original.committed, original.steps)
    np.testing.assert_equal(contents(copy), contents(original))
    check_links(copy)


def test_a_copy_has_the_sources_of_the_replay_whose_datasets_may_be_gone(tmp_path: Path) -> None:
    demos = train_in_turns(configured(tmp_path / "demos", 100)).run_dir
    replay = {"sources": {"demos": {"dataset": str(demos), "share": 0.5}}}
    run = train_in_turns(configured(tmp_path / "run", 200, replay=replay)).run_dir
    back_up(run, tmp_path / "copy")
    shutil.rmtree(demos)
    assert train_in_turns(configured(tmp_path / "copy", 250, replay=replay), resume=True).opt_steps == 250


def test_rows_that_are_overwritten_faster_than_they_are_copied_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_in_turns(configured(tmp_path / "run", 300, replay={"capacity": 100})).run_dir
    original = replay_of(run)
    oldest, copy_batch = original.first(), ReplayWriter.copy

    def overwritten_meanwhile(writer: ReplayWriter, *given: Any, **named: Any) -> None:
        header = ReplayMemory(run / "shared" / "replay", original.schema, original.capacity, create=False).header
        header.oldest = max(oldest + 10, int(header.oldest))
        copy_batch(writer, *given, **named)

    for module in ("crossborder.inspecting.backup", "learner.replay.copying"):
        monkeypatch.setattr(f"{module}.ROWS", 5)
    monkeypatch.setattr(ReplayWriter, "copy", overwritten_meanwhile)
    back_up(run, tmp_path / "copy")
    copy = replay_of(tmp_path / "copy")
    assert oldest + 10 <= copy.first() < copy.committed == original.committed
    check_rows(contents(copy))


@pytest.mark.parametrize(("tries", "copied"), [(1, 50), (3, 13), (20, 1)])
def test_the_newest_rows_are_copied_where_all_others_are_overwritten(
    tries: int, copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = open_linked(tmp_path / "source", create=True, capacity=100)
    writer = ReplayWriter(memory)
    for seq in range(1, 16):
        writer.append(next_linked(memory, 9), 9, 7, seq)
    overwritten, copy_batches = iter(range(tries)), backup._copy_batches

    def overwrite_first(*given: Any) -> bool:
        return next(overwritten, None) is None and copy_batches(*given)

    monkeypatch.setattr(backup, "_copy_batches", overwrite_first)
    assert _copy_replay(tmp_path / "source" / "replay", tmp_path / "copy" / "replay") == copied
    copy = open_linked(tmp_path / "copy", create=False, capacity=100)
    assert (copy.committed, copy.steps) == (memory.committed, memory.steps)


def test_a_copy_whose_rows_are_always_overwritten_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = open_linked(tmp_path / "source", create=True, capacity=100)
    ReplayWriter(memory).append(next_linked(memory, 9), 9, 7, 1)
    monkeypatch.setattr(backup, "_copy_batches", lambda *_: False)
    with pytest.raises(RunDirectoryError, match="have overwritten the rows 64 times"):
        _copy_replay(tmp_path / "source" / "replay", tmp_path / "copy" / "replay")


@pytest.mark.parametrize("name", ["run", "other"])
def test_a_copy_replaces_no_directory_and_copies_only_runs(tmp_path: Path, name: str) -> None:
    run = train_in_turns(configured(tmp_path / "run", 5)).run_dir
    (tmp_path / "other").mkdir()
    with pytest.raises(RunDirectoryError, match=f"{name}: expected a new directory, found one that exists"):
        back_up(run, tmp_path / name)
    with pytest.raises(RunDirectoryError, match="expected run_id and incarnation of the run"):
        back_up(tmp_path / "other", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_a_copy_keeps_the_cursor_of_each_actor_and_what_it_dropped(tmp_path: Path) -> None:
    memory = open_linked(tmp_path / "source", create=True, capacity=60)
    writer = ReplayWriter(memory)
    for seq in range(1, 15):
        for incarnation in (7, 2**60):
            count, follows = seq % 5 + 1, seq % 4 > 0
            writer.append(next_linked(memory, count), count, incarnation, seq, follows=follows)
    memory.close()
    assert _copy_replay(tmp_path / "source" / "replay", tmp_path / "copy" / "replay") == 60
    copy = open_linked(tmp_path / "copy", create=False, capacity=60)
    assert previous_rows(copy).tolist() == previous_rows(memory).tolist()
    assert next_rows(copy).tolist() == next_rows(memory).tolist()
    assert (copy.steps, copy.drawable) == (memory.steps, memory.drawable)
    again = ReplayWriter(copy)
    for incarnation in (7, 2**60):
        assert again.last_seq(incarnation) == 14
        rows = next_linked(memory, 3)
        for one in (writer, again):
            one.append(rows, 3, incarnation, 15)
        assert previous_rows(copy).tolist() == previous_rows(memory).tolist()


def test_rows_of_more_actor_processes_than_there_are_cursors_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.replay.memory.N_CURSORS", 4)
    memory = open_linked(tmp_path / "source", create=True, capacity=100)
    writer = ReplayWriter(memory, is_gone=lambda incarnation: incarnation != 1)
    for incarnation in range(1, 21):
        writer.append(next_linked(memory, 3), 3, incarnation, 1)
    assert _copy_replay(tmp_path / "source" / "replay", tmp_path / "copy" / "replay") == 60
    copy = open_linked(tmp_path / "copy", create=False, capacity=100)
    assert copy.cursors["incarnation"].tolist() == memory.cursors["incarnation"].tolist()
    assert ReplayWriter(copy).last_seq(1) == 1, "the process that is not gone has its cursor"


def test_a_copy_has_the_settings_that_were_changed_while_the_run_went_on(tmp_path: Path) -> None:
    def trained(run: Path, max_opts: int, *, resume: bool) -> LearnerServer:
        config = configured(run, max_opts, replay={"capacity": 2000, "samples_per_insert": 4})
        with LearnerServer(config, 1, resume=resume) as server:
            server.train()
        return server

    run, copy = tmp_path / "run", tmp_path / "copy"
    trained(run, 20, resume=False)
    cordons = Cordons(run / "shared" / "cordons.json")
    cordons.cordon(Selection(hosts=frozenset({"worn-out"})))
    control = ControlBlock.open(run / "shared")
    LiveRatio(control, RatioLimiter(4.0, 0)).change(2.5, 0, 0)
    back_up(run, copy)
    assert Cordons(copy / "shared" / "cordons.json").cordoned == cordons.cordoned
    assert (copy / "shared" / "limits.json").read_text() == (run / "shared" / "limits.json").read_text()
    assert trained(copy, 40, resume=True).ratio.samples_per_insert == 2.5


def test_rows_whose_records_the_log_has_lost_are_copied_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.replay.batch_log.MAX_RECORDS", 3)
    monkeypatch.setattr("crossborder.inspecting.backup.ROWS", 8)
    memory = open_linked(tmp_path / "source", create=True, capacity=100)
    writer = ReplayWriter(memory)
    for seq in range(1, 16):
        writer.append(next_linked(memory, 9), 9, 7, seq)
    memory.close()
    assert _copy_replay(tmp_path / "source" / "replay", tmp_path / "copy" / "replay") == 100
    copy = open_linked(tmp_path / "copy", create=False, capacity=100)
    assert previous_rows(copy).tolist() == previous_rows(memory).tolist()
    assert ReplayWriter(copy).last_seq(7) == 15


def test_a_copy_of_a_run_of_several_ranks_has_the_shard_of_each(tmp_path: Path) -> None:
    run = train_in_turns(configured(tmp_path / "run", 300)).run_dir
    shutil.copytree(run, tmp_path / "shard")
    (tmp_path / "shard" / "metrics.csv").unlink()  # A rank other than 0 records nothing.
    (tmp_path / "shard").rename(run / "rank-1")
    copied = back_up(run, tmp_path / "copy")
    assert copied.rows == 2 * len(replay_of(run))
    np.testing.assert_equal(
        contents(replay_of(tmp_path / "copy" / "rank-1")), contents(replay_of(run / "rank-1")), "the same rows"
    )
    shard = tmp_path / "copy" / "rank-1"
    assert list_states(shard)
    assert json.loads((shard / "run.json").read_text()) == json.loads((run / "run.json").read_text())
