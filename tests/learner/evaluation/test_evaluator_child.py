"""The evaluator process itself, asked by its parent's lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import RunConfig
from common.errors import CheckpointError
from common.parts import build_parts
from common.process.child import Child
from learner.shared.bell import Bell
from learner.storage.checkpoint import Checkpoints
from tests.conftest import PATIENCE, MakeConfig, children_of, is_alive, kill, wait_for
from tests.learner.evaluation.test_evaluator_process import Start, WriteConfig, write_gated
from tests.learner.loop.test_in_turns import IN_TURNS

QUESTION = {"evaluate": "candidate"}


@contextmanager
def evaluator(config: RunConfig, candidate: Path) -> Iterator[tuple[Child, Bell]]:
    """A child that is ready, and the bell that it rings."""
    bell = Bell.create()
    boot = {"config": config.model_dump(mode="json"), "candidate": str(candidate), "bell_fd": bell.write_fd}
    child = Child("evaluator", "learner.evaluation.evaluator_child", boot, pass_fds=(bell.write_fd,))
    try:
        assert child.next_event(PATIENCE) == {"ready": True}
        yield child, bell
    finally:
        child.end(PATIENCE)
        bell.close()


def asked(child: Child) -> dict[str, Any]:
    """Its answer to one line."""
    child.tell(QUESTION)
    return child.next_event(PATIENCE)


def test_it_answers_with_the_score_of_the_candidate_as_it_lies_there_and_its_opt_steps(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(agent=IN_TURNS, evaluator={"process": "child", "target": "tests.parts:StepsEvaluator"})
    checkpoints = Checkpoints(tmp_path, config, "run")
    agent = build_parts(config, seed=0).agent
    with evaluator(config, tmp_path / "candidate") as (child, bell):
        for opt_steps in (3, 5):
            checkpoints.draft("candidate", agent, opt_steps=opt_steps)
            answer = asked(child)
            assert answer["opt_steps"] == opt_steps
            assert answer.keys() == {"opt_steps", "score", "record", "seconds"}
        wait_for(lambda: bell.wait(0.1), "a sign of life")


def test_the_same_candidate_has_the_same_score_again_also_if_some_of_its_actions_are_random(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    agent = {"target": "common.agents.dqn:DQN", "params": {"eval_epsilon": 0.5}}
    config = make_config(env={"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}, agent=agent)
    Checkpoints(tmp_path, config, "run").draft("candidate", build_parts(config, seed=0).agent, opt_steps=1)
    with evaluator(config, tmp_path / "candidate") as (child, _):
        assert asked(child)["score"] == asked(child)["score"]


def test_a_candidate_that_cannot_be_read_is_an_answer_with_its_exit_code(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    with evaluator(make_config(agent=IN_TURNS), tmp_path / "none") as (child, _):
        answer = asked(child)
        assert (answer["exit_code"], "no readable checkpoint" in answer["failure"]) == (CheckpointError.exit_code, True)
        assert asked(child) == answer


def test_it_ends_itself_when_its_stdin_closes(make_config: MakeConfig, tmp_path: Path) -> None:
    with evaluator(make_config(agent=IN_TURNS), tmp_path / "none") as (child, _):
        child.close_stdin()
        assert child.wait(PATIENCE) == 0


@pytest.mark.own_children
def test_no_evaluator_outlives_a_killed_trainer_even_during_an_evaluation(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    trainer = start("sync-train", "--config", write_gated(write_config, tmp_path))
    wait_for((tmp_path / "begun").exists, "the evaluation begins")
    (child,) = children_of(trainer.process.pid)
    kill(trainer.process.pid)
    wait_for(lambda: not is_alive(child), "the evaluator ends itself")
