"""Sweeps of short runs, whose score is a setting."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import yaml

from common.interfaces import Agent, Evaluation
from crossborder.sweeps.sweep_config import SweepConfig, load_sweep
from tests.conftest import counting_values, merged
from tests.learner.loop.test_in_turns import IN_TURNS


class WorthEvaluator:
    """The score is ``worth`` times the opt steps of the agent.

    With ``gate``, each evaluation but the first one makes the file that ``sign_of_waiting`` names, and waits for the
    file that ``gate_of`` names.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: object, worth: float = 1.0, gate: str = "") -> None:
        self._env, self._worth, self._gate = env, worth, gate

    def evaluate(self, agent: Agent) -> Evaluation:
        steps = float(agent.save_params()["steps"][0])
        if self._gate and steps > EVAL_INTERVAL:
            sign_of_waiting(self._gate).write_text(str(os.getpid()))
            while not gate_of(self._gate, self._worth).exists():
                self._env.reset()  # This ends the evaluation of a run that has to stop.
                time.sleep(0.02)
        score = self._worth * steps
        return Evaluation(score, {"eval_reward": score, "eval_reward_min": score, "eval_reward_max": score})


WORTH = "evaluator.params.worth"
GATE = "evaluator.params.gate"
EVAL_INTERVAL = 10


def gate_of(gate: str | Path, worth: float) -> Path:
    """The file for which runs of this worth wait after their first evaluation."""
    return Path(f"{gate}-{worth:g}")


def sign_of_waiting(gate: str | Path) -> Path:
    """The file that says that a run waits at this gate, with the id of its process."""
    return Path(f"{gate}-waiting")


def write_sweep(directory: Path, **changes: Any) -> Path:
    """Write a run's file, and a sweep's file over it that has two values of ``worth``."""
    values = merged(
        counting_values(directory / "unused"),
        {
            "agent": IN_TURNS,
            "trainer": {
                "max_opts": 30,
                "eval_interval": EVAL_INTERVAL,
                "record_interval": 10,
                "checkpoint_seconds": 0.1,
            },
            "evaluator": {"target": "tests.crossborder.sweeps.worth:WorthEvaluator"},
        },
    )
    (directory / "counting.yaml").write_text(yaml.safe_dump(values))
    sweep = {"config": str(directory / "counting.yaml"), "space": {WORTH: [1.0, 3.0]}, "sampler": "grid", **changes}
    path = directory / "worth.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def give_mirror(sweep: SweepConfig, url: str) -> None:
    """Write into the run's file that the run has a mirror, without which it acknowledges nothing."""
    values = yaml.safe_load(sweep.config.read_text())
    sweep.config.write_text(yaml.safe_dump({**values, "storage": {"mirror": url, "acknowledge": "mirrored"}}))


def make_sweep(directory: Path, **changes: Any) -> SweepConfig:
    """The sweep of ``write_sweep``."""
    return load_sweep(write_sweep(directory, **changes))
