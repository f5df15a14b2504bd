"""Runs that go on: along every road between the ways to train, from a backup, and where somebody moves their files."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actor.stat import ActorStat
from common.config.run_config import RunConfig, load_config
from common.errors import CheckpointError, ConfigError, RunDirectoryError
from learner.loop import run as run_module
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.offline import train_offline
from learner.loop.run import AsyncTrainStat, Result, actor_stats, actor_stats_fmt
from learner.loop.server import LearnerServer, train_async
from learner.replay.memory import ReplayMemory
from learner.shared.actor_table import ActorState, map_actor_table
from learner.storage.checkpoint import load_params
from learner.storage.rundir import list_states
from learner.storage.training_state import StateFiles
from tests.conftest import MakeConfig, counting_config, wait_for
from tests.parts import check_rows

IN_TURNS = {"target": "tests.parts:CheckingAgent", "params": {"in_turns": True}}
SCORED = {"target": "tests.parts:StepsEvaluator"}


def learner_server(config: RunConfig) -> Result:
    return train_async(config, 1, resume=True)


def sync_train(config: RunConfig) -> Result:
    return train_in_turns(config, resume=True)


def offline_train(config: RunConfig) -> Result:
    return train_offline(config, None, resume=True)


@pytest.fixture(autouse=True)
def keeping_all_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.loop.run.StateFiles", partial(StateFiles, keep=50))


def configured(run_dir: Path, max_opts: int, **changes: Any) -> RunConfig:
    """A counting run that takes so many opt steps in all."""
    trainer = {"max_opts": max_opts, "record_interval": 10}
    return counting_config(run_dir, **{"agent": IN_TURNS, "trainer": trainer, **changes})


def replay_of(run_dir: Path) -> ReplayMemory:
    return ReplayMemory.open_saved(run_dir / "shared" / "replay")


# Every road between the ways to train.


def test_a_run_goes_on_along_every_road_between_the_ways_to_train(tmp_path: Path) -> None:
    """Nine ordered pairs of the three ways, one after another, in one run."""
    a, s, o = learner_server, sync_train, offline_train
    stored, incarnation, run_ids = 0, 0, set()
    for life, train in enumerate((a, a, s, s, o, o, a, o, s, a), start=1):
        result = train(configured(tmp_path / "run", 20 * life, replay={"samples_per_insert": 4}))
        assert result.opt_steps == 20 * life
        memory = replay_of(tmp_path / "run")
        assert memory.committed >= stored, "what is stored stays"
        assert (memory.committed > stored) == (train is not o), "only acting adds rows"
        stored = memory.committed
        check_rows({name: column[:stored] for name, column in memory.columns.items()})
        identity = json.loads((tmp_path / "run" / "run.json").read_text())
        assert identity["incarnation"] > incarnation
        incarnation = identity["incarnation"]
        run_ids.add(identity["run_id"])
    assert len(run_ids) == 1


def test_a_run_that_began_from_a_dataset_goes_on_with_actors_and_keeps_its_dataset(tmp_path: Path) -> None:
    earlier = train_in_turns(configured(tmp_path / "earlier", 300)).run_dir
    config = configured(tmp_path / "run", 20, replay={"capacity": 100, "samples_per_insert": 4})
    train_offline(config, str(earlier))
    first = replay_of(tmp_path / "run").committed
    assert first > 100, "the replay has grown to the size of the dataset"
    resolved = load_config(tmp_path / "run" / "config.yaml", ["trainer.max_opts=60"])
    assert resolved.replay.samples_per_insert == 4, "the ratio that is configured holds again as soon as actors come"
    assert train_async(resolved, 1, resume=True).opt_steps == 60
    memory = replay_of(tmp_path / "run")
    assert memory.committed > first
    assert replay_of(earlier).committed == first


def test_a_run_in_turns_that_takes_up_another_ratio_or_another_way_does_not_catch_up(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", 200)
    train_offline(config, str(train_in_turns(configured(tmp_path / "earlier", 300)).run_dir))
    before = replay_of(tmp_path / "run").steps
    for max_opts, ratio in ((220, 32), (240, 64)):  # Batches of 32.
        train_in_turns(configured(tmp_path / "run", max_opts, replay={"samples_per_insert": ratio}), resume=True)
        added = replay_of(tmp_path / "run").steps - before
        assert abs(added * ratio - 20 * 32) <= 2 * ratio, "each step of this life was drawn as often as the ratio says"
        before += added


def test_a_run_from_a_dataset_is_resumed_with_the_items_it_has(tmp_path: Path) -> None:
    earlier = train_in_turns(configured(tmp_path / "earlier", 100)).run_dir
    config = configured(tmp_path / "run", 30)
    train_offline(config, str(earlier), resume=True)
    shutil.rmtree(earlier)
    assert train_offline(configured(tmp_path / "run", 60), str(earlier), resume=True).opt_steps == 60


def test_a_new_run_from_a_dataset_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dataset: expected a dataset to fill the replay from, found none"):
        train_offline(configured(tmp_path / "run", 30), None, resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("train", [sync_train, offline_train])
def test_a_run_without_actors_does_not_go_on_while_a_former_ingest_process_still_writes(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, train: Callable[[RunConfig], Result]
) -> None:
    monkeypatch.setattr(run_module, "FORMER_INGEST_SECONDS", 0.1)
    with LearnerServer(make_config(agent=IN_TURNS, server={"grace_seconds": 0.5})) as server:
        run = server.run
        config = configured(tmp_path / "other", 10)
        train_in_turns(config)
        shutil.rmtree(tmp_path / "other" / "shared")
        (tmp_path / "other" / "shared").symlink_to(run.dir.shared)
        with pytest.raises(RunDirectoryError, match="the ingest process of a learner that was killed still holds it"):
            train(config)


def test_a_run_of_another_release_is_refused_and_its_files_stay_as_they_were(tmp_path: Path) -> None:
    shared = train_in_turns(configured(tmp_path / "run", 20)).run_dir / "shared"
    layout = shared / "replay" / "layout.json"
    layout.write_text(json.dumps({**json.loads(layout.read_text()), "version": 2}))
    (shared / "actors").write_bytes(bytes(8192 * 216))  # The size of the table of release 0.1.
    before = {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
    for train in (learner_server, sync_train):
        with pytest.raises(RunDirectoryError, match="found layout 2, which another release wrote; only that"):
            train(configured(tmp_path / "run", 30))
    assert {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()} == before


# A backup.


def back_up(run: Path, to: Path, *, with_identity: bool) -> Path:
    """What docs/operations.md says."""
    to.mkdir()
    for name in ("best", "checkpoints"):
        shutil.copytree(run / name, to / name)
    for name in ("config.yaml", *["run.json"] * with_identity):
        shutil.copy(run / name, to / name)
    return to


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run whose best score, 100, is that of its last evaluation; it had a warm-up of 20 steps."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_in_turns(backed(run_dir, 100))
    return run_dir


def backed(run_dir: Path, max_opts: int) -> RunConfig:
    trainer = {"max_opts": max_opts, "record_interval": 10, "eval_interval": 30, "warmup_period": 20}
    ratio = {"capacity": 50, "samples_per_insert": 32}
    return configured(run_dir, max_opts, trainer=trainer, evaluator=SCORED, replay=ratio)


@pytest.mark.parametrize(
    ("train", "with_identity"),
    [(learner_server, False), (sync_train, True)],
    ids=["by actors without run.json", "in turns with run.json"],
)
def test_the_documented_backup_goes_on_from_its_newest_checkpoint_and_says_that_the_replay_is_missing(
    trained: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    train: Callable[[RunConfig], Result],
    with_identity: bool,
) -> None:
    copy = back_up(trained, tmp_path / "copy", with_identity=with_identity)
    stored = replay_of(trained).steps
    with caplog.at_level(logging.INFO):
        result = train(backed(copy, 110))
    assert (
        "the replay is missing (shared/replay): training goes on from opt step 100 with an EMPTY replay" in caplog.text
    )
    assert f"it held up to 50 steps, of {stored} ever stored" in caplog.text
    assert "resumed at opt step 100 with" in caplog.text
    assert "opt step 110: evaluation 110.00 (best so far 110.00)" in caplog.text
    assert (result.opt_steps, result.best_score) == (110, 110.0)
    before, after = (json.loads((path / "run.json").read_text()) for path in (trained, copy))
    assert after["run_id"] == before["run_id"]
    assert after["incarnation"] > before["incarnation"]
    memory = replay_of(copy)
    assert memory.steps_began == stored
    assert memory.steps - stored >= 20, "a new warm-up comes before the first draw"


def test_a_best_that_is_worse_than_the_backups_does_not_take_its_place(trained: Path, tmp_path: Path) -> None:
    copy = back_up(trained, tmp_path / "copy", with_identity=True)
    meta = copy / "best" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "score": 1e6}))
    assert train_in_turns(backed(copy, 130), resume=True).best_score == 1e6
    assert load_params(copy / "best")[1]["score"] == 1e6


def test_a_restored_backup_can_be_killed_and_resumed_like_any_run(trained: Path, tmp_path: Path) -> None:
    copy = back_up(trained, tmp_path / "copy", with_identity=True)
    (copy / "shared" / ".replay.part").mkdir(parents=True)  # Killed while it made the replay.
    (copy / "shared" / ".replay.part" / "header").write_text("half")
    sync_train(backed(copy, 110))
    sync_train(backed(copy, 130))
    memory = replay_of(copy)
    stored = replay_of(trained).steps
    assert abs((memory.steps - stored - 20) * 32 - 30 * 32) <= 2 * 32, "draws are those of the steps since then"


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (("best",), "best/"),
        (("final",), "final/"),
        (("metrics.csv",), "metrics.csv"),
        (("config.yaml",), "config.yaml"),
        (("best", "config.yaml", "run.json"), "run.json, best/, config.yaml"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_no_new_run_begins_in_a_directory_with_results_but_no_state(
    trained: Path, tmp_path: Path, left: tuple[str, ...], found: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=lambda path, names: set(names) - {*left} if Path(path) == trained else set())
    files = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(RunDirectoryError, match=f"cannot be resumed: found {found}, but no state of training"):
        sync_train(backed(copy, 110))
    with pytest.raises(RunDirectoryError, match=f"expected a new run directory, found a run .{found}"):
        train_in_turns(backed(copy, 110))
    assert {path: path.read_bytes() for path in files} == files


def test_records_that_are_no_text_are_named_and_nothing_is_written(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    (copy / "metrics.csv").write_bytes(b"\xf9" + (copy / "metrics.csv").read_bytes())
    damaged = (copy / "metrics.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"metrics\.csv: expected a CSV file, found another kind of file"):
        sync_train(backed(copy, 110))
    assert (copy / "metrics.csv").read_bytes() == damaged


def test_a_record_that_is_damaged_costs_a_run_its_picture_and_not_its_outcome(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    heading, *rows = (copy / "metrics.csv").read_text().splitlines()
    values = dict(zip(heading.split(","), rows[0].split(","), strict=True)) | {"eval_reward": "1.q"}
    (copy / "metrics.csv").write_text("\n".join([heading, ",".join(values.values()), *rows[1:], ""]))
    assert sync_train(backed(copy, 110)).opt_steps == 110
    assert "the run ends without its learning curve: " in caplog.text
    assert "metrics.csv: column eval_reward: expected numbers, found '1.q'" in caplog.text


# Files that somebody moves while the run goes on.


@pytest.mark.parametrize("instead", ["nothing", "another run"])
def test_nothing_is_written_in_the_place_of_a_directory_that_was_renamed_during_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, instead: str
) -> None:
    run_dir, away = tmp_path / "run", tmp_path / "away"
    with Trainer(configured(run_dir, 30, trainer={"max_opts": 30, "checkpoint_seconds": 1e-6})) as trainer:
        run_dir.rename(away)
        if instead == "another run":
            train_in_turns(configured(run_dir, 5))
        there = {path for path in tmp_path.rglob("*") if away not in path.parents}
        with pytest.raises(CheckpointError, match="expected the directory that this learner has locked"):
            trainer.train()
        assert {path for path in tmp_path.rglob("*") if away not in path.parents} == there
    wait_for(lambda: "training goes on without this checkpoint" in caplog.text, "the thread that writes says so")
    assert [state.name for state in list_states(away)] == ["0"]
    np.testing.assert_array_less(0, replay_of(away).committed)


# Read-only sources.


def with_source(run_dir: Path, dataset: Path, max_opts: int) -> RunConfig:
    """A run of which a quarter of each batch comes from the replay of another."""
    sources = {"demos": {"dataset": str(dataset), "share": 0.25}}
    return configured(run_dir, max_opts, replay={"samples_per_insert": 4, "sources": sources})


def test_rows_of_a_source_that_a_disk_has_damaged_are_excluded_when_the_run_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_in_turns(configured(tmp_path / "earlier", 20))
    train_in_turns(with_source(tmp_path / "run", tmp_path / "earlier", 20))
    copied = ReplayMemory.open_saved(tmp_path / "run" / "shared" / "sources" / "demos")
    path = copied.directory / "column-reward"
    rewards = np.fromfile(path, "<f4")
    rewards[3] = np.nan
    rewards.tofile(path)
    with caplog.at_level(logging.WARNING):
        train_in_turns(with_source(tmp_path / "run", tmp_path / "earlier", 40), resume=True)
    assert "1 rows of the source demos hold values that are refused" in caplog.text


def test_a_resumed_run_does_not_learn_from_the_copy_of_another_dataset(tmp_path: Path) -> None:
    train_in_turns(configured(tmp_path / "earlier", 20))
    train_in_turns(with_source(tmp_path / "run", tmp_path / "earlier", 20))
    with pytest.raises(ConfigError, match=r"replay\.sources\.demos\.dataset: expected '.*earlier'.* found '.*other'"):
        train_in_turns(with_source(tmp_path / "run", tmp_path / "other", 40), resume=True)


def test_invariant_14_both_summaries_have_borders_csv_formats() -> None:
    trainer = AsyncTrainStat(samples_per_sec=1000.0, duration=2.5, opt_per_sec=400.0)
    assert trainer.fmt() == "samples/sec, opt_steps/sec, duration\n1000.0, 400.0, 2.50\n"
    actors = [ActorStat(0, 500, 2.0), ActorStat(1, 0, 0.0)]
    assert actor_stats_fmt(actors) == "actor_id, samples, samples/sec, duration\n0, 500, 250.0, 2.00\n1, 0, 0.0, 0.00\n"


def test_actors_are_listed_by_id_also_those_that_have_gone(tmp_path: Path) -> None:
    table = map_actor_table(tmp_path, create=True)
    for row, (actor_id, state) in enumerate([(1, ActorState.LEFT), (0, ActorState.LOST), (1, ActorState.ONLINE)]):
        table[row]["actor_id"], table[row]["state"], table[row]["env_steps"] = actor_id, state, row + 10
    assert [(s.actor_id, s.env_steps) for s in actor_stats(table)] == [(0, 11), (1, 10), (1, 12)]
