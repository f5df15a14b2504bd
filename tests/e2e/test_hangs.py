"""Processes that hang instead of dying: stopped by SIGSTOP, or in an environment that does not return."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner.loop.in_turns import Trainer, train_in_turns
from tests.conftest import Command, MakeConfig, endpoints, wait_for
from tests.e2e.test_by_hand import trains
from tests.e2e.test_counting import CAPACITY, steps_of, train_in_thread
from tests.learner.evaluation.test_evaluator_process import ENDLESS, evaluations, in_thread, process_of
from tests.learner.loop.test_in_turns import IN_TURNS
from tests.learner.scrapes import scrape
from tests.parts import PACED
from tests.stored import assert_stored

HUNG = 3.0
"""Seconds; a busy machine may let a process that is well wait for one or two."""
IMPATIENT = {"hung_seconds": HUNG}


def hanging(tmp_path: Path) -> dict[str, Any]:
    """An environment that hangs at step 3 of its first evaluation, and nowhere else."""
    (tmp_path / "never").touch()
    params, eval_params = ({"marker": str(tmp_path / name), "at": 3} for name in ("never", "hung"))
    target = {"target": "tests.parts:HangingEnv", "timeout_seconds": HUNG}
    return {**PACED, **target, "params": params, "eval_params": eval_params}


def test_a_frozen_ingest_is_started_again_and_nothing_is_lost(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(
        replay={"capacity": CAPACITY, "samples_per_insert": 1.6}, trainer={"max_opts": 1_000_000}, server=IMPATIENT
    )
    with train_in_thread(config, local_actors=1) as (server, results):
        wait_for(lambda: server.buffer.inserted > 500, "rows flow")
        os.kill(server.ingest.pid, signal.SIGSTOP)
        wait_for(lambda: server.ingest.restarts >= 1, "the restart")
        goal = server.buffer.inserted + 500
        wait_for(lambda: server.buffer.inserted > goal, "rows flow again")
        server.learner.request_stop()
    (result,) = results
    assert "shows no sign of life and is killed" in caplog.text
    assert_stored(result.run_dir, steps_of(result))


def test_a_frozen_trainer_is_seen_by_ingest(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = write_config(trainer=ENDLESS, server=IMPATIENT)
    learner = start("learner-server", "--config", str(config))
    port = endpoints(tmp_path / "run")["ingest_metrics_port"]
    wait_for(lambda: trains(tmp_path / "run"), "training has begun: before that, silence is no hang")
    learner.signal(signal.SIGSTOP)
    wait_for(lambda: scrape(port)["trainer_silent_seconds"] > 2 * HUNG, "ingest sees it")
    learner.signal(signal.SIGCONT)
    wait_for(lambda: "the trainer goes on" in learner.output(), "ingest says that it is over")
    assert "the trainer has shown no sign of life" in learner.output()
    wait_for(lambda: scrape(port)["trainer_silent_seconds"] < HUNG, "it shows signs of life again")
    learner.signal(signal.SIGINT)
    assert learner.wait() == 130
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()


def test_a_frozen_evaluator_is_started_again_and_asked_again(make_config: MakeConfig, tmp_path: Path) -> None:
    evaluator = {"process": "child", "target": "tests.parts:StepsEvaluator"}
    changes: dict[str, Any] = {"agent": IN_TURNS, "trainer": ENDLESS, "env": {**PACED, "timeout_seconds": HUNG / 2}}
    with Trainer(make_config(evaluator=evaluator, server=IMPATIENT, **changes)) as trainer:
        os.kill(process_of(trainer)._supervisor.child.pid, signal.SIGSTOP)
        with in_thread(trainer):
            wait_for(lambda: trainer.learner.scoring.restarts >= 1, "the restart")
            wait_for(lambda: trainer.learner.best_score >= 10, "it is asked again")
    assert evaluations(tmp_path / "run")[0]["opt_steps"] == 10


def test_an_evaluator_whose_environment_hangs_ends_itself_and_is_asked_again(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(agent=IN_TURNS, env=hanging(tmp_path), evaluator={"process": "child"}, trainer=ENDLESS)
    with Trainer(config) as trainer, in_thread(trainer):
        wait_for((tmp_path / "hung").exists, "the environment hangs")
        wait_for(lambda: trainer.learner.evaluations.count > 0, "the evaluation is done again")
        assert trainer.learner.scoring.restarts == 1
    assert "an environment does not return" in caplog.text
    assert "evaluator ended with exit code 17 and is started again" in caplog.text
    assert evaluations(tmp_path / "run")[0]["opt_steps"] == 10


def test_a_candidate_at_which_every_evaluator_dies_gets_no_score_and_training_goes_on(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = {"process": "child", "target": "tests.parts:DyingEvaluator", "params": {"until": 20}}
    config = make_config(agent=IN_TURNS, env=PACED, evaluator=evaluator, trainer=ENDLESS)
    with Trainer(config) as trainer, in_thread(trainer):
        wait_for(lambda: trainer.learner.evaluations.count > 0, "a later candidate has a score")
    assert "opt step 10: no evaluation: 2 processes ended at it" in caplog.text
    assert evaluations(tmp_path / "run")[0]["opt_steps"] > 20


def test_an_environment_that_hangs_while_training_waits_for_its_evaluation_is_told(
    make_config: MakeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    config = make_config(
        agent=IN_TURNS,
        env={**hanging(tmp_path), "target": "tests.parts:PausingEnv", "timeout_seconds": 1.0},
        trainer={"max_opts": 10, "eval_interval": 10},
    )
    train_in_turns(config)
    (told,) = [record.getMessage() for record in caplog.records if "has not returned for 1 s" in record.getMessage()]
    assert "in fail" in told, "the stack names the place"
