from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.config.actor_config import EvaluatorConfig
from common.data import Array
from common.evaluation import DefaultEvaluator
from common.lanes.building import spec_of
from common.lanes.watched_envs import Watch
from common.process.clocks import Deadline
from learner.evaluation.scoring import CANDIDATE, CANDIDATES, SCORE, ActorScoring, InlineScoring
from learner.models.publisher import ModelPublisher
from learner.shared.control import ControlBlock
from learner.storage.checkpoint import Checkpoints, load_params
from learner.storage.training_state import Moment
from tests.common.test_evaluation import Idle, SeedEnv
from tests.conftest import PATIENCE, Command, wait_for
from tests.learner.loop.test_in_turns import IN_TURNS
from tests.learner.storage.test_checkpoint import CONFIG
from tests.parts import CheckingAgent, CountingEnv

MOMENT = Moment(opt_steps=12, samples_total=34, seconds=5.6)


class Abandoning(Idle):
    """Whoever evaluates it is asked to stop meanwhile."""

    def __init__(self, abandoned: threading.Event) -> None:
        self._abandoned = abandoned

    def sample(self, obs: Array) -> Array:
        self._abandoned.set()
        return super().sample(obs)


def inline(directory: Path, env: SeedEnv, abandoned: threading.Event) -> InlineScoring:
    evaluator = DefaultEvaluator(Watch(abandoned).over(env), EvaluatorConfig(episodes=2), seed=1)
    return InlineScoring(evaluator, Checkpoints(directory, CONFIG, "run"), abandoned)


def test_an_inline_score_is_known_at_once_and_the_agent_itself_becomes_the_best(tmp_path: Path) -> None:
    scoring, agent = inline(tmp_path, SeedEnv(), threading.Event()), Idle()
    agent.train()
    finished = scoring.begin(agent, MOMENT)
    assert finished is not None
    assert (finished.moment, finished.evaluation.score) == (MOMENT, 4.5)
    assert agent.is_train
    assert scoring.poll(wait=True) is None
    scoring.keep_best(agent, finished)
    meta = load_params(tmp_path / "best")[1]
    assert (meta["opt_steps"], meta["samples_total"], meta["seconds"], meta["score"]) == (12, 34, 5.6, 4.5)


def test_an_abandoned_inline_evaluation_ends_at_the_next_step_without_a_score(tmp_path: Path) -> None:
    abandoned, env = threading.Event(), SeedEnv()
    agent = Abandoning(abandoned)
    assert inline(tmp_path, env, abandoned).begin(agent, MOMENT) is None
    assert (env.seeds, env.steps) == ([1], 0)
    assert agent.is_train


def test_ctrl_c_ends_a_long_inline_evaluation_in_order(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """Also of an evaluator that suppresses every exception."""
    begun, run_dir = tmp_path / "begun", tmp_path / "run"
    evaluator = {"target": "tests.parts:EndlessEvaluator", "params": {"begun": str(begun)}}
    config = write_config(agent=IN_TURNS, evaluator=evaluator, trainer={"eval_interval": 20})
    trainer = start("sync-train", "--config", str(config))
    wait_for(begun.exists, "the evaluation begins")
    trainer.signal(signal.SIGINT)
    assert trainer.wait() == 130, trainer.output()
    assert json.loads((run_dir / "final" / "meta.json").read_text())["opt_steps"] == 20
    assert not (run_dir / "best").exists()
    assert "Traceback" not in trainer.output()


FIRST, LATER = Moment(10, 100, 1.0), Moment(20, 200, 2.0)


@dataclass
class Host:
    """A trainer's side, and what ingest would do."""

    directory: Path
    scoring: ActorScoring
    agent: CheckingAgent
    publisher: ModelPublisher
    control: ControlBlock

    def report(self, opt_steps: int, score: float, *, incarnation: int = 3, seconds: float = 0.5) -> None:
        """Note a score as ingest does."""
        found: dict[str, Any] = {"incarnation": incarnation, "opt_steps": opt_steps, "score": score}
        (self.directory / SCORE).write_text(json.dumps({**found, "record": {"eval_reward": score}, "seconds": seconds}))
        self.control.scores += 1


@pytest.fixture
def host(tmp_path: Path) -> Host:
    control = ControlBlock.open(tmp_path, create=True)
    agent = CheckingAgent(spec_of(CountingEnv()), seed=0, epsilon=0.0, device="cpu")
    publisher = ModelPublisher(tmp_path / CANDIDATES, agent.model_info(), 3)
    checkpoints = Checkpoints(tmp_path, CONFIG, "run")
    publish = partial(publisher.publish, wait=True)
    scoring = ActorScoring(tmp_path, control, publish, incarnation=3, checkpoints=checkpoints)
    return Host(tmp_path, scoring, agent, publisher, control)


def test_the_model_of_a_candidate_is_published_and_its_score_comes_later(host: Host) -> None:
    assert host.scoring.begin(host.agent, FIRST) is None
    assert host.publisher.slots.newest().opt_steps == 10
    assert host.scoring.poll() is None
    host.report(10, 7.5)
    finished = host.scoring.poll()
    assert finished is not None
    assert (finished.moment, finished.evaluation.score, finished.seconds) == (FIRST, 7.5, 0.5)
    assert host.scoring.poll() is None


def test_the_best_policy_is_the_one_that_was_scored_and_not_what_was_learnt_since(host: Host) -> None:
    host.scoring.begin(host.agent, FIRST)
    host.agent.load_params({"steps": host.agent.save_params()["steps"] + 5})
    host.report(10, 7.5)
    finished = host.scoring.poll()
    assert finished is not None
    host.scoring.keep_best(host.agent, finished)
    params, meta = load_params(host.directory / "best")
    assert (float(params["steps"][0]), meta["opt_steps"], meta["score"]) == (0.0, 10, 7.5)


def test_scores_of_other_models_and_of_earlier_lives_do_not_count(host: Host) -> None:
    host.scoring.begin(host.agent, FIRST)
    host.report(9, 1.0)
    assert host.scoring.poll() is None
    host.report(10, 1.0, incarnation=2)
    assert host.scoring.poll() is None
    host.report(10, 2.0)
    assert host.scoring.poll() is not None


def test_a_score_that_cannot_be_read_is_read_again_at_the_next_look(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.scoring.begin(host.agent, FIRST)
    (host.directory / SCORE).mkdir()
    host.control.scores += 1
    assert [host.scoring.poll() for _ in range(2)] == [None, None]
    assert [each.partition(" (")[0] for each in caplog.messages] == [f"{host.directory / SCORE} cannot be read"]
    (host.directory / SCORE).rmdir()
    (host.directory / SCORE).write_text("[]")
    assert host.scoring.poll() is None
    host.report(10, 7.5)
    assert host.scoring.poll() is not None


def test_a_candidate_is_skipped_while_another_has_no_score_and_it_is_said_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    host.scoring.begin(host.agent, FIRST)
    for _ in range(2):
        host.scoring.begin(host.agent, LATER)
    assert host.scoring.skipped == 2
    assert host.publisher.slots.newest().opt_steps == 10
    (said,) = caplog.messages
    assert said.startswith(
        "opt step 20: evaluation skipped, the evaluation before has no score yet; is an actor-worker"
    )


def test_at_the_end_a_score_is_waited_for_and_the_trainer_shows_life_meanwhile(host: Host) -> None:
    host.scoring.begin(host.agent, FIRST)

    def report_when_waited_for() -> None:
        wait_for(lambda: host.control.trainer_beats, "the trainer waits")
        host.report(10, 4.0)

    reporting = threading.Thread(target=report_when_waited_for)
    reporting.start()
    finished = host.scoring.poll(wait=True)
    reporting.join(PATIENCE)
    assert finished is not None
    assert finished.evaluation.score == 4.0


def test_a_score_that_does_not_come_is_given_up(
    host: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.evaluation.scoring.FINISH_SECONDS", 0.2)
    host.scoring.begin(host.agent, LATER)
    assert host.scoring.poll(wait=True) is None
    assert "opt step 20: the evaluation is abandoned: no score came" in caplog.text


def test_after_long_evaluations_the_end_waits_longer(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    def note(seconds: float) -> Deadline:
        waits.append(seconds)
        return Deadline(0.0)

    monkeypatch.setattr("learner.evaluation.scoring.Deadline", note)
    host.scoring.begin(host.agent, FIRST)
    host.report(10, 7.5, seconds=100.0)
    assert host.scoring.poll() is not None
    host.scoring.begin(host.agent, LATER)
    host.scoring.poll(wait=True)
    assert waits == [0.0, 200.0]


def test_nothing_is_left_of_a_candidate_at_the_end(host: Host) -> None:
    host.scoring.begin(host.agent, FIRST)
    assert (host.directory / CANDIDATE).exists()
    host.scoring.end()
    assert not (host.directory / CANDIDATE).exists()


def test_no_evaluation_begins_after_scoring_was_abandoned(host: Host) -> None:
    host.scoring.abandon()
    assert host.scoring.begin(host.agent, FIRST) is None
    assert not (host.directory / CANDIDATE).exists()
