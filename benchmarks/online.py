"""From a dataset to actors: does an agent that was trained offline keep its return when it goes on online?

    python -m benchmarks.online                three seeds; a run that is kept already is not repeated

A run of SAC on Pendulum-v1 gives the dataset: all of its 10,000 rows, the first ones of a policy that acts at random,
or its newest 5,000 rows, nearly all of a good policy, as demonstrations are. IQL and SAC learn from a dataset without
an environment (``offline-train``). Each then begins a new run from its last policy (``--from RUN/final``), with half of
every batch from the dataset (``replay.sources``), or without the dataset. Curves begin with the score of the policy
that was trained offline.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.kept import runs_of, train_missing
from benchmarks.variants import draw
from common.config.run_config import RunConfig, load_config
from crossborder.curves.learning_curve import read_points
from learner.loop.in_turns import train_in_turns
from learner.loop.offline import train_offline
from learner.storage.origin import Origin

NAME: Final = "online"
OFFLINE_OPTS: Final = 6000
ONLINE_OPTS: Final = 1000
"""A run takes about the same number of environment steps."""
EVAL_INTERVAL: Final = 50


@dataclass(frozen=True)
class Way:
    """How an agent gets from a dataset to an environment."""

    agent: str
    rows: int
    """Of the dataset."""
    goes_over: bool = True
    """Whether half of every batch comes from the dataset afterwards."""


IQL: Final = "common.agents.iql:IQL"
SAC: Final = "common.agents.sac:SAC"
WAYS: Final = {
    "IQL, 5k": Way(IQL, 5000),
    "IQL, 5k, weights": Way(IQL, 5000, goes_over=False),
    "SAC, 5k": Way(SAC, 5000),
    "SAC, 10k": Way(SAC, 10000),
    "SAC, 10k, weights": Way(SAC, 10000, goes_over=False),
}


def configure(file: str, directory: Path, seed: int, settings: Mapping[str, Any]) -> RunConfig:
    """A configuration with other settings, by path."""
    shared = {"seed": seed, "run_dir": directory, "trainer.target_score": "null", "agent.params.units": [64, 64]}
    return load_config(Path("configs") / file, [f"{key}={value}" for key, value in {**shared, **settings}.items()])


def collect(directory: Path, rows: int, seed: int) -> Path:
    """Train SAC from scratch, once; this many of its newest rows are the dataset."""
    run_dir = directory / f"{rows} rows"
    if run_dir.exists():
        return run_dir
    settings = {"trainer.max_opts": 9000, "agent.params.batch_size": 128, "replay.samples_per_insert": 128}
    settings |= {"replay.capacity": rows, "trainer.eval_interval": 9000}
    return train_in_turns(configure("pendulum.yaml", run_dir, seed, settings)).run_dir


def train(directory: Path, way: Way, seed: int) -> dict[str, Any]:
    """Train an agent offline, once, and then online; its curve over environment steps of the second run."""
    dataset, target = collect(directory, way.rows, seed), {"agent.target": way.agent}
    offline = directory / f"{way.agent} {way.rows}"
    if not offline.exists():
        settings = {**target, "trainer.max_opts": OFFLINE_OPTS}
        train_offline(configure("pendulum_offline.yaml", offline, seed, settings), str(dataset))
    settings = {
        **target,
        "trainer.max_opts": ONLINE_OPTS,
        "trainer.eval_interval": EVAL_INTERVAL,
        "trainer.warmup_period": 200,
        "replay.samples_per_insert": 256,
    }
    if way.goes_over:
        settings["replay.sources"] = json.dumps({"demonstrations": {"dataset": str(dataset), "share": 0.5}})
    if way.agent == SAC:
        settings["agent.params.random_opts"] = 0
    online = directory / f"{offline.name} {way.goes_over}"
    config = configure("pendulum_offline.yaml", online, seed, settings)
    result = train_in_turns(config, origin=Origin.at(offline / "final"))
    before = list(read_points(offline).values())[-1]
    curve = [[0, round(before, 2)]]
    curve += [[int(x), round(y, 2)] for x, y in read_points(result.run_dir, "env-steps").items()]
    load = round(os.getloadavg()[0], 1)
    return {"load": load, "opt_steps": result.opt_steps, "seconds": round(result.seconds, 1), "curve": curve}


def table() -> str:
    """For each way and seed: the score offline, the worst one early online, and the last one."""
    lines = [
        f"| start | seed | offline | worst online | after {ONLINE_OPTS:,} steps online |",
        "|---|--:|--:|--:|--:|",
    ]
    for run in sorted(runs_of(NAME), key=lambda run: ([*WAYS].index(run["way"]), run["seed"])):
        (_, before), *online = run["curve"]
        worst = min(score for _, score in online)
        lines.append(f"| {run['way']} | {run['seed']} | {before:,.0f} | {worst:,.0f} | {online[-1][1]:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table and draw the picture."""
    parser = argparse.ArgumentParser("benchmarks.online", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as directory:  # The ways of a seed share their datasets.
            ways = {way: partial(train, Path(directory), WAYS[way]) for way in arguments.ways}
            train_missing(NAME, ways, [seed])
    title = "Pendulum-v1 after training from a dataset"
    sys.stdout.write(f"{table()}\n{draw(NAME, title)}\n")


if __name__ == "__main__":
    main()
