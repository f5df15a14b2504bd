"""The example with fewer or more parts, side by side at equal wall-clock: writes one line of JSON for each run.

    python -m examples.robot.compare runs/robot-comparison --seconds 200 --seeds 3

The runs are made one after another, since robots act in real time; `crossborder-plot` draws their curves.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.robot.demonstrations import write_demonstrations
from examples.robot.fleet import BIN, Fleet

NO_DEMONSTRATIONS: Final = {"replay.sources.demonstrations.dataset": "null"}
NO_PERSON: Final = {
    "env.wrappers": "[]",
    "env.intervention": "null",
    "replay.sources.demonstrations.interventions": "false",
}
SUCCESS: Final = 0.95
"""The share of successes in an evaluation from which a run counts as successful."""


@dataclass(frozen=True)
class Variant:
    """A way to run the example: the number of robots, and the settings that differ from ``robot.yaml``."""

    robots: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)


VARIANTS: Final = {
    "all": Variant(),
    "one-robot": Variant(robots=1),
    "four-robots": Variant(robots=4),
    "no-demonstrations": Variant(settings=NO_DEMONSTRATIONS),
    "no-interventions": Variant(settings=NO_PERSON),
    "neither": Variant(settings={**NO_PERSON, "replay.sources": "{}"}),
}


def train(folder: Path, variant: Variant, seed: int, seconds: float, demonstrations: Path) -> dict[str, Any]:
    """Train for some seconds; return the measurements of the run.

    Raises:
        ChildProcessError: the learner failed.
    """
    given = {"replay.sources.demonstrations.dataset": demonstrations, **variant.settings}
    if "replay.sources" in given:
        del given["replay.sources.demonstrations.dataset"], given["replay.sources.demonstrations.interventions"]
    limits = {"seed": seed, "trainer.target_score": "null", "trainer.max_seconds": seconds, "trainer.max_opts": 10**6}
    limits["evaluator.episodes"] = 20  # Episodes use processor time while robots act.
    with Fleet(folder, {**given, **limits}) as fleet:
        learner = fleet.start_learner()
        fleet.start_robots(*range(variant.robots))
        if learner.wait() != 0:
            raise ChildProcessError(f"the learner failed; see {fleet.log('learner')}")
        return measure(fleet.run_dir)


def measure(run: Path) -> dict[str, Any]:
    """A run's evaluations, the time of its first success, and the score of its last policy in 50 other episodes."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    scored = sorted((row["seconds"], row["opt_steps"], row["eval_reward"]) for row in rows if "eval_reward" in row)
    which = ["--run", str(run), "--checkpoint", "final", "--allow", "examples"]
    played = [*which, "--episodes", "50", "--seed", "5000", "--json"]
    answer = subprocess.run([BIN / "policy-eval", *played], check=True, capture_output=True, text=True).stdout
    return {
        "steps": int(max(row["samples_total"] for row in rows)),
        "opt_steps": int(max(row["opt_steps"] for row in rows)),
        "seconds_to_success": next((round(at, 1) for at, _, score in scored if score >= SUCCESS), None),
        "success_at_the_end": json.loads(answer)["score"],
        "evaluations": [[round(at, 1), int(opts), score] for at, opts, score in scored],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Train each variant with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the runs and results.jsonl")
    parser.add_argument("--seconds", type=float, default=200, help="of training in each run (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="(default: all)")
    arguments = parser.parse_args(argv)
    demonstrations = arguments.folder / "demonstrations"
    write_demonstrations(demonstrations, episodes=20, noise=0.5)
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for name in arguments.variants:
            folder = arguments.folder / f"{name}-{seed}"
            found = train(folder, VARIANTS[name], seed, arguments.seconds, demonstrations)
            line = json.dumps({"variant": name, "seed": seed, **found})
            with (arguments.folder / "results.jsonl").open("a") as file:
                file.write(f"{line}\n")
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
