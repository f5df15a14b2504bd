"""Weights of prioritised draws, divided by the largest of the whole replay or of the batch, over several seeds.

    python -m benchmarks.priorities                            all tasks, five seeds each, then the table
    python -m benchmarks.priorities cartpole --seeds 10        one task, ten seeds
    python -m benchmarks.priorities --seeds 0                  the table of the runs that are kept

Adam divides by the size of gradients, and so undoes a factor of all weights unless gradients are small beside its eps.
Each task runs with Adam's usual eps and with the larger one of Rainbow. All runs train in turns, from the same seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.kept import runs_of, train_missing
from benchmarks.report import add_choice
from benchmarks.variants import Variant, train
from crossborder.curves.statistics import bootstrap_interval, interquartile_mean

NAME: Final = "priorities"
EPS: Final = ("1e-8", "1.5e-4")
EVALUATIONS: Final = 10
TASKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cartpole": {"trainer.max_opts": 12_000},
    "acrobot": {"trainer.max_opts": 12_000},
    "lunarlander": {"trainer.max_opts": 20_000},
    "minatar_breakout": {"trainer.max_opts": 20_000, "agent.params.explorer.final_step": 10_000},
}
"""By configuration, the settings that replace those of the file: shorter runs."""


def make_variants(task: str) -> dict[str, Variant]:
    """The variants of a task by name; they differ in two settings."""
    settings = TASKS[task]
    same = {"trainer.target_score": "null", "trainer.eval_interval": settings["trainer.max_opts"] // EVALUATIONS}
    return {
        f"{task}, eps {eps}, {normalize}": Variant(
            {
                **settings,
                **same,
                "agent.params.optimizer": f"{{eps: {eps}}}",
                "replay.prioritized": f"{{normalize: {normalize}}}",
            }
        )
        for eps, normalize in product(EPS, ("all", "batch"))
    }


def table() -> str:
    """For each variant the interquartile mean over seeds and its interval, of all evaluations' mean and of the last."""
    lines = ["| variant | mean of all evaluations | last evaluation | seeds |", "|---|--:|--:|--:|"]
    runs = runs_of(NAME)
    for way in dict.fromkeys(run["way"] for run in runs):
        scores = [[score for _, score in run["curve"]] for run in runs if run["way"] == way]
        values = np.array([(np.mean(curve), curve[-1]) for curve in scores])  # [seeds, 2]
        cells = [
            f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"
            for middle, low, high in zip(interquartile_mean(values.T), *bootstrap_interval([values]), strict=True)
        ]
        lines.append(f"| {way} | {' | '.join(cells)} | {len(scores)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.priorities", description=__doc__.splitlines()[0] if __doc__ else None)
    add_choice(parser, "tasks", TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    ways = {
        way: partial(train, Path(f"configs/{task}.yaml"), variant)
        for task in arguments.tasks
        for way, variant in make_variants(task).items()
    }
    train_missing(NAME, ways, range(arguments.seeds))
    sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main()
