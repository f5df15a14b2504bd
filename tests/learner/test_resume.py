"""Going on with a run in turns: what is restored, what goes on, and what is refused by name."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import RunConfig
from common.errors import CheckpointError, ConfigError, CrossborderError, RunDirectoryError, SchemaMismatchError
from common.settings import validate
from learner.loop.in_turns import train_in_turns
from learner.loop.learner import Outcome
from learner.replay.memory import ReplayMemory
from learner.replay.writer import ReplayWriter
from learner.storage.checkpoint import load_params
from learner.storage.training_state import StateFiles
from tests.conftest import merged
from tests.learner.loop.test_in_turns import cartpole, rows

BATCH, RATIO = 64, 16
"""Of ``cartpole``."""


def changed(config: RunConfig, **changes: Any) -> RunConfig:
    """A configuration with values of some sections laid over it."""
    return validate(RunConfig, merged(config.model_dump(mode="json"), changes))


def axis(run_dir: Path) -> list[int]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [int(row["opt_steps"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a short run that has taken all its 200 opt steps."""
    run_dir = tmp_path_factory.mktemp("once") / "run"
    train_in_turns(changed(cartpole(run_dir, seed=3), trainer={"checkpoint_seconds": 0.01}))
    return run_dir


@pytest.fixture
def ended(once: Path, tmp_path: Path) -> RunConfig:
    """The configuration of such a run of the test's own."""
    shutil.copytree(once, tmp_path / "run")
    return cartpole(tmp_path / "run", seed=3)


def test_a_run_goes_on_where_it_ended_when_it_may_take_more_steps(ended: RunConfig, tmp_path: Path) -> None:
    run_id = load_params(tmp_path / "run" / "final")[1]["run_id"]
    before = ReplayMemory.open_saved(tmp_path / "run" / "shared" / "replay").steps
    best = load_params(tmp_path / "run" / "best")[1]["score"]
    result = train_in_turns(changed(ended, trainer={"max_opts": 300}), resume=True)
    assert (result.outcome, result.opt_steps) == (Outcome.MAX_OPTS, 300)
    assert result.best_score >= best
    assert load_params(tmp_path / "run" / "final")[1]["run_id"] == run_id
    steps = axis(tmp_path / "run")
    assert steps == sorted(set(steps))
    assert steps[-1] == 300
    assert abs((result.samples_total - before) * RATIO - 100 * BATCH) <= 2 * BATCH
    assert "max_opts: 300" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_run_that_has_taken_all_its_steps_takes_none_more(ended: RunConfig) -> None:
    result = train_in_turns(ended, resume=True)
    assert (result.outcome, result.opt_steps) == (Outcome.MAX_OPTS, 200)


def test_a_best_that_is_newer_than_the_checkpoint_is_not_given_up_for_less(ended: RunConfig, tmp_path: Path) -> None:
    meta = tmp_path / "run" / "best" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "score": 1e6}))
    result = train_in_turns(changed(ended, trainer={"max_opts": 250}), resume=True)
    assert result.best_score == 1e6
    assert load_params(tmp_path / "run" / "best")[1]["score"] == 1e6


def test_after_a_damaged_checkpoint_the_steps_since_the_one_before_are_taken_anew(
    ended: RunConfig, once: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run" / "checkpoints" / "200" / "state.safetensors").write_bytes(b"torn")
    with caplog.at_level(logging.INFO):
        train_in_turns(ended, resume=True)
    assert "checkpoints/200: state.safetensors is damaged" in caplog.text
    found = re.search(r"resumed at opt step (\d+)", caplog.text)
    assert found
    assert 0 < int(found[1]) < 200
    assert rows(tmp_path / "run") == rows(once)


@pytest.mark.parametrize("ratio", [64, None])
def test_a_run_that_ended_in_the_middle_of_a_turn_goes_on_there(tmp_path: Path, ratio: int | None) -> None:
    def train(name: str, max_opts: int) -> list[dict[str, str]]:
        config = cartpole(tmp_path / name, seed=3, envs_per_actor=4)  # Four opt steps a turn.
        config = changed(config, replay={"samples_per_insert": ratio}, trainer={"max_opts": max_opts})
        return rows(train_in_turns(config, resume=True).run_dir)

    alone = train("alone", 200)
    for max_opts in (81, 142, 200):
        resumed = train("resumed", max_opts)
    ends = [row for row in resumed if row["opt_steps"] in ("81", "142")]  # Each life scores its last policy.
    assert [bool(row["eval_reward"]) for row in ends] == [True, True]
    assert [row for row in resumed if row not in ends] == alone


def test_where_the_replay_cannot_go_back_rows_stay_episodes_begin_anew_and_it_is_said(
    ended: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "run" / "shared" / "replay"
    saved = ReplayMemory.open_saved(shared)
    before, steps = saved.committed, saved.steps
    memory = ReplayMemory(shared, saved.schema, ended.replay.capacity, create=False)
    rows = {name: column[:5] for name, column in memory.columns.items()}
    ReplayWriter(memory).append(rows, 5, incarnation=7, seq=1)  # An actor's, and acknowledged.
    steps += int((~rows["final"]).sum())
    result = train_in_turns(changed(ended, trainer={"max_opts": 300}), resume=True)
    assert f"the replay cannot go back to its first {before} rows: later rows stay" in caplog.text
    assert abs((result.samples_total - steps) * RATIO - 100 * BATCH) <= 2 * BATCH, "and without a burst"


def test_a_policy_names_the_libraries_of_its_products_and_a_resumed_run_warns_if_another_one_multiplies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = changed(
        cartpole(tmp_path / "run", seed=3),
        agent={"params": {"units": [256, 256]}},
        trainer={"max_opts": 10, "products": "onednn"},
    )
    train_in_turns(wide)
    before = load_params(tmp_path / "run" / "final")[1]["products"]
    assert (before["setting"], before["torch"]) == ("onednn", [])
    assert "64x256 by 256x256^T plus bias" in before["onednn"]
    train_in_turns(changed(wide, trainer={"max_opts": 12}), resume=True)
    assert "another library" not in caplog.text
    train_in_turns(changed(wide, trainer={"max_opts": 14, "products": "torch"}), resume=True)
    assert "products are computed by another library than before" in caplog.text
    assert load_params(tmp_path / "run" / "final")[1]["products"]["onednn"] == []


def test_after_a_power_cut_the_run_goes_on_from_its_checkpoint_as_if_nothing_had_been(
    ended: RunConfig, once: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared, checkpoints = tmp_path / "run" / "shared" / "replay", tmp_path / "run" / "checkpoints"
    memory = ReplayMemory(shared, ReplayMemory.open_saved(shared).schema, ended.replay.capacity, create=False)
    for checkpoint in list(checkpoints.iterdir()):  # A checkpoint with the last row would have synced it.
        if json.loads((checkpoint / "replay.json").read_text())["committed"] == memory.committed:
            shutil.rmtree(checkpoint)
    memory.columns["obs"][(memory.committed - 1) % memory.n_slots] = 0  # Its page did not reach the disk.
    memory.header.place = 12345
    train_in_turns(ended, resume=True)
    assert "the host was restarted" in caplog.text
    assert "the replay cannot go back" not in caplog.text
    assert rows(tmp_path / "run") == rows(once)


def test_resuming_where_there_is_no_run_begins_one(tmp_path: Path) -> None:
    config = changed(cartpole(tmp_path / "run", seed=3), trainer={"max_opts": 20})
    assert train_in_turns(config, resume=True).opt_steps == 20


def test_a_run_that_was_killed_early_goes_on_from_the_state_with_which_it_began(
    tmp_path: Path, once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.loop.run.StateFiles", partial(StateFiles, keep=1000))
    run_dir = tmp_path / "run"
    config = cartpole(run_dir, seed=3)
    train_in_turns(changed(config, trainer={"checkpoint_seconds": 0.01}))
    for state in (run_dir / "checkpoints").iterdir():
        if state.name != "0":
            shutil.rmtree(state)
    assert train_in_turns(config, resume=True).opt_steps == 200
    assert rows(run_dir) == rows(once)


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_a_run_whose_states_are_gone_is_not_begun_anew_and_it_is_said_how_to_go_on(
    ended: RunConfig, tmp_path: Path, left: str
) -> None:
    states = tmp_path / "run" / "checkpoints"
    shutil.rmtree(states)
    if left != "nothing":
        states.mkdir()
    best = (tmp_path / "run" / "best" / "model.safetensors").read_bytes()
    message = r"found run\.json, best/, final/, metrics\.csv, but no state of training in checkpoints/.*--from .*run "
    with pytest.raises(RunDirectoryError, match=message):
        train_in_turns(ended, resume=True)
    with pytest.raises(RunDirectoryError, match="expected a new run directory, found a run"):
        train_in_turns(ended)
    assert (tmp_path / "run" / "best" / "model.safetensors").read_bytes() == best


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"agent": {"params": {"units": [17]}}}, CheckpointError, "DQN: the saved network does not fit this one"),
        ({"agent": {"target": "common.agents.iqn:IQN"}}, ConfigError, r"agent\.target: expected common\.agents\.dqn"),
        ({"replay": {"capacity": 999}}, SchemaMismatchError, "expected capacity 999, found 1000"),
        ({"env": {"info": {"score": "float32"}}}, SchemaMismatchError, "info/score"),
    ],
    ids=["network", "agent", "capacity", "schema"],
)
def test_what_does_not_fit_is_refused_by_name_and_the_run_stays_as_it_was(
    ended: RunConfig, tmp_path: Path, changes: dict[str, Any], kind: type[CrossborderError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        train_in_turns(changed(ended, **changes), resume=True)
    assert train_in_turns(changed(ended, trainer={"max_opts": 210}), resume=True).opt_steps == 210


def test_a_directory_whose_run_never_began_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "run" / "shared" / "replay").mkdir(parents=True)
    (tmp_path / "run" / "shared" / "replay" / "header").write_text("half")
    (tmp_path / "run" / "metrics.csv").write_text("opt_steps,seconds\n")
    config = changed(cartpole(tmp_path / "run", seed=3), trainer={"max_opts": 20})
    assert train_in_turns(config, resume=True).opt_steps == 20
