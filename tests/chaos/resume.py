"""A run that is killed at a random opt step and resumed comes as far as one that is left alone."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any, Final

from common.errors import BudgetExhaustedError
from tests.chaos.report import scratch, tell
from tests.conftest import ROOT, Command, kill, wait_for
from tests.e2e.test_resume import kept, resumed_at

TARGET: Final = 475.0
"""Of CartPole-v1, where it counts as solved."""
RUN_SECONDS: Final = 900.0
SETTINGS: Final = (
    *("--set", f"trainer.target_score={TARGET:g}", "--set", "trainer.max_opts=20000"),
    *("--set", "trainer.eval_interval=250", "--set", "evaluator.episodes=20"),
    *("--set", "trainer.checkpoint_seconds=0.5"),
)


def _start(directory: Path, seed: int) -> Command:
    config = ("--config", str(ROOT / "configs" / "cartpole.yaml"), "--run-dir", str(directory / "run"))
    return Command("learner.sync_cli", *config, *SETTINGS, "--set", f"seed={seed}", log=directory / "first.log")


def _outcome(run: Command, directory: Path) -> dict[str, Any]:
    """The best score of a run that is waited for, and the opt step at which it ended."""
    code = run.wait(RUN_SECONDS)
    assert code in (0, BudgetExhaustedError.exit_code), run.output()
    with (directory / "run" / "metrics.csv").open(newline="") as file:
        scores = [
            (int(row["opt_steps"]), float(row["eval_reward"])) for row in csv.DictReader(file) if row["eval_reward"]
        ]
    return {"reached": code == 0, "score": max(score for _, score in scores), "opt_steps": scores[-1][0]}


def _alone(seed: int) -> dict[str, Any]:
    with scratch() as directory:
        return _outcome(_start(directory, seed), directory)


def _killed(seed: int, at: int) -> dict[str, Any]:
    with scratch() as directory:
        first = _start(directory, seed)
        wait_for(lambda: kept(directory / "run") >= at, f"opt step {at}", RUN_SECONDS)
        kill(first.process.pid)
        first.wait()
        again = Command("learner.sync_cli", "--resume", str(directory / "run"), log=directory / "again.log")
        outcome = _outcome(again, directory)
        return {"resumed_at": resumed_at(again), **outcome}


def go_on(seeds: int, seed: int) -> dict[str, Any]:
    """Train in turns with so many seeds, each once alone and once killed with kill -9 at a random step and resumed.

    Raises:
        AssertionError: a killed run did not reach what the one that was left alone did.
    """
    rng, runs = random.Random(seed), []
    for number in range(seeds):
        alone = _alone(number)
        killed = _killed(number, rng.randrange(1, max(2, alone["opt_steps"] // 2)))
        tell(f"seed {number}: alone {alone}, killed {killed}")
        assert killed["reached"] or not alone["reached"], (alone, killed)
        runs.append({"seed": number, "alone": alone, "killed": killed})
    return {"target": TARGET, "runs": runs}
