"""A run in turns that is killed at random opt steps and resumed is the one that is left alone, to the last bit."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Final

from common.errors import BudgetExhaustedError
from tests.chaos.report import scratch, tell
from tests.conftest import ROOT, Command, kill, wait_for
from tests.e2e.test_exact import assert_same, records
from tests.e2e.test_resume import kept

TARGET: Final = 475.0
"""Of CartPole-v1, where it counts as solved."""
RUN_SECONDS: Final = 900.0
SETTINGS: Final = (
    *("--set", f"trainer.target_score={TARGET:g}", "--set", "trainer.max_opts=20000"),
    *("--set", "trainer.eval_interval=250", "--set", "evaluator.episodes=20"),
    *("--set", "trainer.checkpoint_seconds=0.5"),
)


def _start(run_dir: Path, seed: int) -> Command:
    config = ("--config", str(ROOT / "configs" / "cartpole.yaml"), "--run-dir", str(run_dir))
    return Command("sync-train", *config, *SETTINGS, "--set", f"seed={seed}", log=run_dir.with_suffix(".log"))


def _finish(run: Command) -> None:
    code = run.wait(RUN_SECONDS)
    assert code in (0, BudgetExhaustedError.exit_code), run.output()


def _train_killed(run_dir: Path, seed: int, steps: list[int]) -> list[int]:
    """Train, killed with kill -9 as soon as a checkpoint is at each of these opt steps; those it was resumed at."""
    run, resumed = _start(run_dir, seed), []
    for at in steps:
        wait_for(partial(_is_beyond, run_dir, at), f"opt step {at}", RUN_SECONDS)
        kill(run.process.pid)
        run.wait()
        resumed.append(kept(run_dir))
        run = Command("sync-train", "--resume", str(run_dir), log=run_dir.with_suffix(".log"))
    _finish(run)
    return resumed


def _is_beyond(run_dir: Path, opt_steps: int) -> bool:
    return kept(run_dir) >= opt_steps


def go_on(seeds: int, seed: int, kills: int) -> dict[str, Any]:
    """Train in turns with so many seeds, each once alone and once killed so often and resumed.

    Raises:
        AssertionError: a run that was killed left something else behind than the one that was left alone.
    """
    rng, runs = random.Random(seed), []
    for number in range(seeds):
        with scratch() as directory:
            alone, killed = directory / "alone", directory / "killed"
            _finish(_start(alone, number))
            opt_steps = kept(alone)
            resumed = _train_killed(killed, number, sorted(rng.sample(range(1, opt_steps), kills)))
            assert_same(alone, killed)
            found = records(alone)
        score = max(float(row["eval_reward"]) for row in found if row["eval_reward"])
        runs.append(
            {"seed": number, "score": score, "opt_steps": opt_steps, "records": len(found), "resumed_at": resumed}
        )
        tell(str(runs[-1]))
    return {"target": TARGET, "runs": runs}
