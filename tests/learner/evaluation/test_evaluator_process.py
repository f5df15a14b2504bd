"""Evaluations in a real child process. Its evaluator waits for a file where a test needs it to take its time."""

from __future__ import annotations

import csv
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.errors import CheckpointError, PluginError
from learner.evaluation.evaluator_process import EvaluatorProcess
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.learner import Outcome
from learner.storage.checkpoint import load_params
from tests.conftest import PATIENCE, Command, MakeConfig, children_of, is_alive, kill, merged, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.learner.loop.test_in_turns import IN_TURNS, cartpole, rows
from tests.parts import PACED

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]
RISING = {"process": "child", "target": "tests.parts:StepsEvaluator"}
ENDLESS = {"max_opts": 1_000_000_000, "eval_interval": 10}


def gated(tmp_path: Path, **evaluator: Any) -> dict[str, Any]:
    """An evaluator that makes ``begun`` and waits for ``gate``."""
    return {**RISING, "params": {name: str(tmp_path / name) for name in ("begun", "gate")}, **evaluator}


def evaluations(run_dir: Path) -> list[dict[str, float]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file) if row["eval_reward"]]


def process_of(trainer: Trainer) -> EvaluatorProcess:
    assert isinstance(trainer.learner.scoring, EvaluatorProcess)
    return trainer.learner.scoring


def write_gated(write_config: WriteConfig, tmp_path: Path) -> str:
    evaluator = gated(tmp_path)
    return str(write_config(agent=IN_TURNS, evaluator=evaluator, trainer=ENDLESS))


@contextmanager
def in_thread(trainer: Trainer) -> Iterator[None]:
    """Training goes on while the test interferes, until the context ends."""
    training = threading.Thread(target=trainer.train)
    training.start()
    try:
        yield
    finally:
        trainer.learner.request_stop()
        training.join(PATIENCE)


def test_training_goes_on_and_the_score_belongs_to_the_candidate(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(evaluator=gated(tmp_path), trainer=ENDLESS)
    with train_in_thread(config, local_actors=1) as (server, results):
        wait_for((tmp_path / "begun").exists, "the evaluation begins")
        wait_for(lambda: server.learner.opt_steps > 100, "training goes on")
        assert server.learner.scoring.skipped >= 9
        (tmp_path / "gate").touch()
        wait_for(lambda: server.learner.best_score > 100, "later evaluations follow")
        assert server.learner.evaluations.count >= 2
        assert server.learner.evaluations.seconds > 0
        server.learner.request_stop()
    (result,) = results
    scored = evaluations(result.run_dir)
    assert scored[0]["opt_steps"] == 10
    assert scored[1]["opt_steps"] > 100
    assert all(row["eval_reward"] == row["opt_steps"] for row in scored), "a score is of the step it names"
    params, meta = load_params(result.run_dir / "best")
    assert float(params["steps"][0]) == meta["opt_steps"] == meta["score"] == result.best_score
    assert meta["opt_steps"] == scored[-1]["opt_steps"]
    assert (meta["seconds"], meta["samples_total"]) == (scored[-1]["seconds"], scored[-1]["samples_total"])
    assert not (result.run_dir / ".candidate").exists()


def test_a_killed_evaluator_is_started_again_and_asked_again(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(agent=IN_TURNS, env=PACED, evaluator=gated(tmp_path), trainer=ENDLESS)
    with Trainer(config) as trainer, in_thread(trainer):
        supervisor = process_of(trainer)._supervisor
        wait_for((tmp_path / "begun").exists, "the evaluation begins")
        steps = trainer.learner.opt_steps
        kill(supervisor.child.pid)
        wait_for(lambda: supervisor.restarts == 1, "the restart")
        wait_for(lambda: trainer.learner.opt_steps > steps, "training goes on")
        (tmp_path / "gate").touch()
        wait_for(lambda: trainer.learner.best_score >= 10, "it is asked again")
        again = supervisor.child.pid
    assert evaluations(tmp_path / "run")[0]["opt_steps"] == 10
    assert not is_alive(again)


def test_an_evaluator_that_cannot_be_started_again_ends_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    evaluator = {**RISING, "target": "tests.parts:BuiltOnceEvaluator", "params": {"marker": str(tmp_path / "marker")}}
    with Trainer(make_config(agent=IN_TURNS, env=PACED, evaluator=evaluator, trainer=ENDLESS)) as trainer:
        kill(process_of(trainer)._supervisor.child.pid)
        with pytest.raises(PluginError, match="the user's simulator is gone"):
            trainer.train()
    assert (tmp_path / "run" / "final").exists()


def test_an_evaluator_that_cannot_be_built_is_told_before_training_begins(make_config: MakeConfig) -> None:
    config = make_config(evaluator={**RISING, "target": "tests.parts:NoSuchEvaluator"}, trainer={"eval_interval": 10})
    with pytest.raises(PluginError, match="no callable 'NoSuchEvaluator'"), Trainer(config):
        pytest.fail("it has begun")


def test_a_resumed_run_does_not_wait_for_its_evaluator_and_ends_if_it_cannot_be_built(make_config: MakeConfig) -> None:
    trainer = {"max_opts": 20, "eval_interval": 10}
    train_in_turns(make_config(agent=IN_TURNS, evaluator={"target": RISING["target"]}, trainer=trainer))
    evaluator = {**RISING, "target": "tests.parts:NoSuchEvaluator"}
    config = make_config(agent=IN_TURNS, env=PACED, evaluator=evaluator, trainer=ENDLESS)
    with Trainer(config, resume=True) as again, pytest.raises(PluginError, match="no callable 'NoSuchEvaluator'"):
        again.train()


def test_ctrl_c_waits_for_no_evaluation(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    trainer = start("sync-train", "--config", write_gated(write_config, tmp_path))
    wait_for((tmp_path / "begun").exists, "the evaluation begins")
    trainer.signal(signal.SIGINT)
    assert trainer.wait() == 130, trainer.output()
    assert "opt step 10: the evaluation is abandoned" in trainer.output()
    assert json.loads((tmp_path / "run" / "final" / "meta.json").read_text())["opt_steps"] >= 10
    assert not (tmp_path / "run" / "best").exists()


def test_the_target_score_ends_training_when_the_answer_comes(make_config: MakeConfig) -> None:
    result = train_in_turns(make_config(agent=IN_TURNS, evaluator=RISING, trainer={**ENDLESS, "target_score": 10.0}))
    assert result.outcome is Outcome.TARGET


def test_the_last_evaluation_is_waited_for(make_config: MakeConfig) -> None:
    trainer = {"max_opts": 20, "eval_interval": 20, "target_score": 20.0}
    result = train_in_turns(make_config(agent=IN_TURNS, evaluator=RISING, trainer=trainer))
    assert (result.outcome, result.best_score) == (Outcome.TARGET, 20.0)
    assert [row["eval_reward"] for row in evaluations(result.run_dir)] == [20.0]


def test_the_last_policy_is_scored_in_the_process_too(make_config: MakeConfig) -> None:
    trainer = {"max_opts": 25, "eval_interval": 20}
    result = train_in_turns(make_config(agent=IN_TURNS, evaluator=RISING, trainer=trainer))
    assert [(row["opt_steps"], row["eval_reward"]) for row in evaluations(result.run_dir)] == [(20, 20.0), (25, 25.0)]
    assert result.best_score == 25.0


@pytest.mark.own_children
def test_an_evaluation_that_outlasts_the_wait_is_abandoned(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "learner")
    monkeypatch.setattr("learner.evaluation.scoring.FINISH_SECONDS", 0.2)
    config = make_config(agent=IN_TURNS, evaluator=gated(tmp_path), trainer={"max_opts": 30, "eval_interval": 10})
    result = train_in_turns(config)
    assert result.outcome is Outcome.MAX_OPTS
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "evaluation" in record.getMessage()]
    assert told == [
        ("INFO", "opt step 20: evaluation skipped, the evaluation before still runs"),
        ("DEBUG", "opt step 30: evaluation skipped, the evaluation before still runs"),
        ("WARNING", "opt step 10: the evaluation is abandoned: no score came"),
    ]
    assert not (result.run_dir / "best").exists()
    assert children_of(os.getpid()) == []


def test_an_exception_in_an_evaluator_ends_the_run_as_it_would_inline(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    evaluator = {**RISING, "target": "tests.parts:FailingEvaluator"}
    config = write_config(agent=IN_TURNS, evaluator=evaluator, trainer={"max_opts": 20, "eval_interval": 10})
    command = start("sync-train", "--config", str(config))
    assert command.wait() == 1, command.output()
    assert "Traceback" in command.output()
    assert "sync-train: evaluator: ZeroDivisionError: a mistake" in command.output()
    assert (tmp_path / "run" / "final").exists()


@pytest.mark.parametrize("process", ["inline", "child"])
def test_a_typed_error_of_an_evaluator_is_raised_alike_wherever_it_is(make_config: MakeConfig, process: str) -> None:
    evaluator = {"target": "tests.parts:FailingEvaluator", "params": {"typed": True}, "process": process}
    config = make_config(agent=IN_TURNS, evaluator=evaluator, trainer={"max_opts": 10, "eval_interval": 10})
    with pytest.raises(CheckpointError, match="the user's own reference is missing"):
        train_in_turns(config)


def test_the_scores_are_those_of_inline_evaluations(tmp_path: Path) -> None:
    inline, child = (cartpole(tmp_path / name, seed=3) for name in ("inline", "child"))
    values = merged(child.model_dump(mode="json"), {"evaluator": {"process": "child"}})
    there = [{k: r[k] for k in r if k.startswith(("opt_steps", "eval"))} for r in rows(train_in_turns(inline).run_dir)]
    scored = [row for row in rows(train_in_turns(type(child).model_validate(values)).run_dir) if row["eval_reward"]]
    assert scored[0]["opt_steps"] == "50"
    for row in scored:
        assert {k: row[k] for k in row if k.startswith(("opt_steps", "eval"))} in there
