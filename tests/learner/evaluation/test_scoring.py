from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from common.config.actor_config import EvaluatorConfig
from common.data import Array
from common.evaluation import DefaultEvaluator
from common.lanes.watched_envs import Watch
from learner.evaluation.scoring import InlineScoring
from learner.storage.checkpoint import Checkpoints, load_params
from learner.storage.training_state import Moment
from tests.common.test_evaluation import Idle, SeedEnv
from tests.conftest import Command, wait_for
from tests.learner.loop.test_in_turns import IN_TURNS
from tests.learner.storage.test_checkpoint import CONFIG

MOMENT = Moment(opt_steps=12, samples_total=34, seconds=5.6)


class Abandoning(Idle):
    """Whoever evaluates it is asked to stop meanwhile."""

    def __init__(self, abandoned: threading.Event) -> None:
        self._abandoned = abandoned

    def sample(self, obs: Array) -> Array:
        self._abandoned.set()
        return super().sample(obs)


def inline(directory: Path, env: SeedEnv, abandoned: threading.Event) -> InlineScoring:
    evaluator = DefaultEvaluator(Watch(abandoned).over(env), EvaluatorConfig(episodes=2, seed=1))
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
