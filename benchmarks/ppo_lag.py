"""PPO, PPO without its correction, and IMPALA on CartPole, with actors that get a new model after each N opt steps.

    python -m benchmarks.ppo_lag                                  three seeds of each variant
    python -m benchmarks.ppo_lag --variants "PPO 50" --seeds 1

Two actors have eight environments together, and every run takes some 200,000 environment steps. No step is left out for
its age. The record ``version_age`` says how old the steps were, in opt steps. An opt step of PPO takes 264
environment steps and learns from them ten times; one of IMPALA takes 320 and learns from them once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.kept import runs_of, spread
from benchmarks.variants import Variant, main
from common.agents.machinery.gradient_step import Batch
from common.agents.machinery.update import Results
from common.agents.policy_gradient import LOG_PROB
from common.agents.ppo import PPO
from crossborder.curves.bands import bring_together
from crossborder.curves.learning_curve import Curve
from crossborder.curves.picture import draw_picture

LAGS: Final = (1, 10, 50, 200)
ENV_STEPS: Final = 200_000
DECOUPLED: Final = "PPO, decoupled"
"""Runs of the code of revision b3bab79d, whose PPO had the decoupled objective (arXiv:2110.00641) and V-trace."""


class UncorrectedPPO(PPO):
    """PPO without correction: it treats each step as one of the policy with which the opt step begins."""

    def _prepare_from(self, batch: Batch) -> Results:
        outputs, _, _ = self._evaluate_batch(batch)
        log_prob = self.actions.log_prob(outputs, self._choice(batch)).view(batch["reward"].shape).detach()
        return super()._prepare_from({**batch, LOG_PROB.name: log_prob})


def make_variants() -> dict[str, Variant]:
    """Each agent at each lag."""
    budget: dict[str, Any] = {
        "trainer.target_score": "null",
        "trainer.max_env_steps": ENV_STEPS,
        "trainer.eval_interval": 50,
        "envs_per_actor": 4,
    }
    ahead = {"replay.error_buffer": 528}  # Actors may be two batches ahead, as those of IMPALA.
    ppo = budget | ahead | {"agent.params.max_lag": "null", "agent.params.optimizer.schedule": "null"}
    uncorrected = ppo | {"agent.target": "benchmarks.ppo_lag:UncorrectedPPO", "agent.params.update": "captured"}
    impala = Path("configs/impala_cartpole.yaml")
    found: dict[str, Variant] = {}
    for lag in LAGS:
        sync = {"trainer.sync_interval": lag}
        found[f"PPO {lag}"] = Variant(ppo | {"trainer.max_opts": 2000} | sync, actors=2)
        found[f"PPO, no correction {lag}"] = Variant(uncorrected | {"trainer.max_opts": 2000} | sync, actors=2)
        found[f"IMPALA {lag}"] = Variant(budget | {"trainer.max_opts": 2000} | sync, actors=2, config=impala)
    return found


def show(name: str, title: str) -> str:
    """A row for each agent and figure, with a column for each lag; draw the mean of all evaluations against the lag."""
    runs = {(run["way"], run["seed"]): run for run in runs_of(name)}
    seeds = sorted({seed for _, seed in runs})
    lines = [f"| opt steps to the next model: | {' | '.join(map(str, LAGS))} |", "|---|" + "--:|" * len(LAGS)]
    for figure, of in FIGURES.items():
        for agent in AGENTS:
            found = [[of(runs[f"{agent} {lag}", seed]) for seed in seeds] for lag in LAGS]
            lines.append(f"| {agent}, {figure} | {' | '.join(map(spread, found))} |")
    path = Path(f"docs/images/{name}.png")
    draw_picture(
        {agent: bring_together([_against_lag(runs, agent, seed) for seed in seeds]) for agent in AGENTS},
        path,
        title=title,
        x_label="opt steps between two models",
        y_label="mean score of a run's evaluations",
    )
    return "\n".join([*lines, str(path)])


def _against_lag(runs: Mapping[tuple[str, int], dict[str, Any]], agent: str, seed: int) -> Curve:
    means = [_mean_score(runs[f"{agent} {lag}", seed]) for lag in LAGS]
    return Curve(Path(f"{agent}-{seed}"), np.array(LAGS, np.float64), np.array(means))


def _mean_score(run: Mapping[str, Any]) -> float:
    return float(statistics.mean(score for _, score in run["curve"]))


AGENTS: Final = ("PPO", "PPO, no correction", DECOUPLED, "IMPALA")
FIGURES: Final[dict[str, Callable[[Mapping[str, Any]], float]]] = {
    "mean of all evaluations": _mean_score,
    "last score": lambda run: float(run["curve"][-1][1]),
    "mean age of steps, in opt steps": lambda run: float(run["version_age"]),
}


if __name__ == "__main__":
    main("ppo_lag", "Return against lag", Path("configs/ppo_cartpole.yaml"), make_variants(), __doc__ or "", show=show)
