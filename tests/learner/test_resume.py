"""Going on with a run in turns: what is restored, what goes on, and what is refused by name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from common.config import RunConfig
from common.errors import CheckpointError, ConfigError, CrossborderError, RunDirectoryError, SchemaMismatchError
from common.settings import validate
from learner.checkpoint import load_params
from learner.learner import Outcome
from learner.replay.memory import ReplayMemory
from learner.server import LearnerServer
from learner.trainer import train_in_turns
from tests.conftest import MakeConfig, merged
from tests.learner.test_trainer import cartpole


def changed(config: RunConfig, **changes: Any) -> RunConfig:
    """A configuration with values of some sections laid over it."""
    return validate(RunConfig, merged(config.model_dump(mode="json"), changes))


def axis(run_dir: Path) -> list[int]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [int(row["opt_steps"]) for row in csv.DictReader(file)]


@pytest.fixture
def ended(tmp_path: Path) -> RunConfig:
    """A short run that has taken all its 200 opt steps."""
    config = cartpole(tmp_path / "run", seed=3)
    train_in_turns(config)
    return config


def test_a_run_goes_on_where_it_ended_when_it_may_take_more_steps(ended: RunConfig, tmp_path: Path) -> None:
    run_id = load_params(tmp_path / "run" / "final")[1]["run_id"]
    before = ReplayMemory.saved(tmp_path / "run" / "shared" / "replay").committed
    best = load_params(tmp_path / "run" / "best")[1]["score"]
    result = train_in_turns(changed(ended, trainer={"max_opts": 300}), resume=True)
    assert (result.outcome, result.opt_steps) == (Outcome.MAX_OPTS, 300)
    assert result.best_score >= best
    assert load_params(tmp_path / "run" / "final")[1]["run_id"] == run_id
    steps = axis(tmp_path / "run")
    assert steps == sorted(set(steps))
    assert steps[-1] == 300
    batch, ratio = 64, 16
    assert abs((result.samples_total - before) * ratio - 100 * batch) <= 2 * batch, "the ratio is held, without a burst"
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


def test_resuming_where_there_is_no_run_begins_one(tmp_path: Path) -> None:
    config = changed(cartpole(tmp_path / "run", seed=3), trainer={"max_opts": 20})
    assert train_in_turns(config, resume=True).opt_steps == 20


def test_a_run_that_died_before_its_first_checkpoint_keeps_its_items(ended: RunConfig, tmp_path: Path) -> None:
    before = ReplayMemory.saved(tmp_path / "run" / "shared" / "replay").committed
    for name in ("manifest.json", "state.json", "state.safetensors"):
        (tmp_path / "run" / "checkpoints" / "200" / name).unlink()
    (tmp_path / "run" / "checkpoints" / "200").rmdir()
    result = train_in_turns(changed(ended, trainer={"max_opts": 20}), resume=True)
    assert result.opt_steps == 20
    assert result.samples_total >= before
    assert axis(tmp_path / "run") == [20]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"agent": {"params": {"units": [17]}}}, CheckpointError, "DQN: the saved network does not fit this one"),
        ({"agent": {"target": "common.agents.iqn:IQN"}}, ConfigError, r"agent\.target: expected common\.agents\.dqn"),
        ({"replay": {"capacity": 999}}, SchemaMismatchError, "expected capacity 999, found 1000"),
        ({"step_processor": {"target": "common.processors:NStep"}}, SchemaMismatchError, "discount"),
    ],
    ids=["network", "agent", "capacity", "schema"],
)
def test_what_does_not_fit_is_refused_by_name_and_the_run_stays_as_it_was(
    ended: RunConfig, tmp_path: Path, changes: dict[str, Any], kind: type[CrossborderError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        train_in_turns(changed(ended, **changes), resume=True)
    assert train_in_turns(changed(ended, trainer={"max_opts": 210}), resume=True).opt_steps == 210


def test_versions_never_go_backwards(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(server={"grace_seconds": 0.5})
    newest = []
    for resume in (False, True, True):
        with LearnerServer(config, resume=resume) as server:
            newest.append((server.control.incarnation, server.learner.opt_steps))
    assert newest == [(1, 0), (2, 0), (3, 0)]


def test_a_directory_whose_run_never_began_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "run" / "shared").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match="did not come as far as to be resumed"):
        train_in_turns(cartpole(tmp_path / "run", seed=3), resume=True)
