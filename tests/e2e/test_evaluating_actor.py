"""An actor that evaluates scores the models of a learner that need not have the environment."""

from __future__ import annotations

from typing import Any

from learner.loop.learner import Outcome
from learner.loop.server import LearnerServer
from learner.storage.checkpoint import load_params
from tests.conftest import Command, MakeConfig, wait_for
from tests.e2e.test_counting import train_in_thread
from tests.parts import PACED

SCORED: dict[str, Any] = {
    "evaluator": {"process": "actor", "target": "tests.parts:StepsEvaluator"},
    "replay": {"capacity": 100_000, "samples_per_insert": 3.2},
}


def test_an_actor_scores_the_candidates_and_the_last_policy_before_it_is_told_to_stop(
    make_config: MakeConfig, start: Any
) -> None:
    config = make_config(**SCORED, trainer={"max_opts": 300, "eval_interval": 50})
    with LearnerServer(config, local_actors=1) as server:
        evaluator: Command = start("actor-worker", "--learner", server.ingest.address, "--evaluate", "--allow", "any")
        wait_for(lambda: server.control.joins == 2, "both actors have joined")
        result = server.train()
    assert evaluator.wait() == 0, evaluator.output()
    assert result.outcome is Outcome.MAX_OPTS
    assert result.best_score == 300, "the score names the opt steps of its model"
    params, meta = load_params(result.run_dir / "best")
    assert float(params["steps"][0]) == meta["opt_steps"] == meta["score"] == 300


def test_a_run_goes_on_without_scores_until_an_actor_evaluates(make_config: MakeConfig, start: Any) -> None:
    trainer = {"max_opts": 1_000_000, "eval_interval": 20}
    with train_in_thread(make_config(**SCORED, env=PACED, trainer=trainer), local_actors=1) as (server, _):
        wait_for(lambda: server.learner.scoring.skipped > 1, "nobody scores")
        start("actor-worker", "--learner", server.ingest.address, "--evaluate", "--allow", "any")
        wait_for(lambda: server.learner.evaluations.count > 2, "scores come")
        assert server.learner.best_score > 0
