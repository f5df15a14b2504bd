"""Sweeps of runs that take a moment, whose score is a setting."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from common.interfaces import Agent, Evaluation
from crossborder.sweeps.sweep_config import SweepConfig, load_sweep
from tests.conftest import counting_values, merged
from tests.learner.loop.test_in_turns import IN_TURNS


class WorthEvaluator:
    """The score is ``worth`` times the opt steps of the agent; each evaluation takes ``seconds``."""

    def __init__(self, env: object, config: object, worth: float = 1.0, seconds: float = 0.0) -> None:
        self._worth, self._seconds = worth, seconds

    def evaluate(self, agent: Agent) -> Evaluation:
        time.sleep(self._seconds)
        score = self._worth * float(agent.save_params()["steps"][0])
        return Evaluation(score, {"eval_reward": score, "eval_reward_min": score, "eval_reward_max": score})


WORTH = "evaluator.params.worth"


def write_sweep(directory: Path, **changes: Any) -> Path:
    """Write a run's file, and a sweep's file over it that has two values of ``worth``."""
    values = merged(
        counting_values(directory / "unused"),
        {
            "agent": IN_TURNS,
            "trainer": {"max_opts": 30, "eval_interval": 10, "record_interval": 10, "checkpoint_seconds": 0.1},
            "evaluator": {"target": "tests.crossborder.sweeps.worth:WorthEvaluator"},
        },
    )
    (directory / "counting.yaml").write_text(yaml.safe_dump(values))
    sweep = {"config": str(directory / "counting.yaml"), "space": {WORTH: [1.0, 3.0]}, "sampler": "grid", **changes}
    path = directory / "worth.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def make_sweep(directory: Path, **changes: Any) -> SweepConfig:
    """The sweep of ``write_sweep``."""
    return load_sweep(write_sweep(directory, **changes))
