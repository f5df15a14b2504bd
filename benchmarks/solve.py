"""Seconds of training until a task is solved, with the network, and in stable-baselines3 in one process.

    python -m benchmarks.solve --python PYTHON     an interpreter with stable-baselines3; without it, ours alone

Both systems learn with the same algorithm, settings and replay ratio on one torch thread. The same greedy episodes
score them after the same numbers of environment steps. Seconds are those of training; start-up (processes, imports, the
first step) has a column of its own, and evaluations do not count. For each seed the systems take turns; the figures are
medians over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import report
from common.config.run_config import load_config
from learner.loop.learner import Outcome
from learner.loop.server import LearnerServer

MAX_ENV_STEPS = 100_000


@dataclass(frozen=True)
class Task:
    """One task in both systems: ``configs/NAME.yaml`` with ``ours``, scored every ``interval`` environment steps."""

    target: float
    episodes: int
    interval: int
    steps_per_opt: int
    env: str
    ours: dict[str, Any]
    sb3: dict[str, Any]


TASKS = {
    "cartpole": Task(
        475.0,
        20,
        2000,
        2,
        "CartPole-v1",
        {
            "replay.view": "{}",
            "agent.params": "{units: [256, 256], lr: 0.0023, batch_size: 64, double_dqn: false, "
            "soft_update_interval: 128, explorer: {start: 1.0, final_step: 4000}}",
            "exploration": "{base: 0.04, alpha: 0.0, rungs: 1}",
        },
        {
            "algorithm": "DQN",
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "target_update_interval": 10,  # Looked at once in 256 steps, with the 128 updates that follow.
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 8000 / MAX_ENV_STEPS,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "pendulum": Task(
        -200.0,
        10,
        500,
        1,
        "Pendulum-v1",
        {},
        {"algorithm": "SAC", "learning_rate": 1e-3, "learning_starts": 1000, "buffer_size": 100_000},
    ),
}


def solve_ours(name: str, seed: int) -> dict[str, float]:
    """One run with an ingest process and one actor, all on this host."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            **task.ours,
            "trainer.target_score": task.target,
            "trainer.max_opts": MAX_ENV_STEPS // task.steps_per_opt,
            "trainer.eval_interval": task.interval // task.steps_per_opt,
            "evaluator": f"{{episodes: {task.episodes}, seed: 1000}}",
            "server.listen": "127.0.0.1:0",
            "metrics": "{trainer_port: null, ingest_port: null}",
            "seed": seed,
            "run_dir": f"{directory}/run",
        }
        config = load_config(Path(f"configs/{name}.yaml"), [f"{key}={value}" for key, value in settings.items()])
        began = time.perf_counter()
        with LearnerServer(config, local_actors=1) as server, Marks(server) as marks:
            result = server.train()
            trained = server.learner.seconds() - server.learner.evaluations.seconds
            waited = server.control.trainer_wait_seconds
        before = marks.first_step - marks.started
    return {
        "solved": float(result.outcome is Outcome.TARGET),
        "seconds": trained - before,
        "start-up s": marks.started - began + before,
        "first opt s": marks.first_opt - marks.warm,
        "env steps": float(result.samples_total),
        "opts": float(result.opt_steps),
        "waited s": waited,
    }


class Marks:
    """The times (``time.perf_counter``) of the first step, of the end of the warm-up and of the first opt step."""

    def __init__(self, server: LearnerServer) -> None:
        self._server, self._ended = server, threading.Event()
        self.started = self.first_step = self.warm = self.first_opt = math.nan
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Marks:
        self.started = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        buffer, learner = self._server.buffer, self._server.learner
        warm_up = self._server.config.trainer.warmup_period
        self.first_step = self._when(lambda: buffer.inserted > 0)
        self.warm = self._when(lambda: buffer.inserted >= warm_up)
        self.first_opt = self._when(lambda: learner.opt_steps > 0)

    def _when(self, happened: Callable[[], bool]) -> float:
        while not happened() and not self._ended.wait(0.002):
            pass
        return time.perf_counter()


def solve_sb3(name: str, seed: int, python: str) -> dict[str, float]:
    """One run of stable-baselines3, in an interpreter of its own."""
    task = TASKS[name]
    job = {
        "env": {"id": task.env},
        "seed": seed,
        "env_steps": MAX_ENV_STEPS,
        "episodes": task.episodes,
        "evaluations": MAX_ENV_STEPS // task.interval,
        "target": task.target,
        "settings": task.sb3,
    }
    script = Path(__file__).parent / "sb3.py"
    done = subprocess.run([python, script, json.dumps(job)], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "solved": float(found["curve"][-1][1] >= task.target),
        "seconds": found["seconds"] - found["eval_seconds"],
        "env steps": float(found["curve"][-1][0]),
        "opts": float(found["opt_steps"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.solve", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--python", help="an interpreter with stable-baselines3")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.tasks:
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "SB3": []}
        for seed in range(arguments.seeds):
            runs["ours"].append(solve_ours(name, seed))
            if arguments.python:
                runs["SB3"].append(solve_sb3(name, seed, arguments.python))
            last = {who: found[-1] for who, found in runs.items() if found}
            sys.stdout.write(json.dumps({"task": name, "seed": seed, **last}) + "\n")
            sys.stdout.flush()
        rows.append({"task": name, **table_row(runs)})
    report("solve", "a seed each; two processes and an actor, acknowledged; one torch thread", rows, arguments.seeds)


def table_row(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, object]:
    """Medians over the runs, and how many of them solved the task."""
    row: dict[str, object] = {}
    for who, found in runs.items():
        if found:
            row[f"{who}: solved"] = f"{sum(run['solved'] for run in found):.0f} of {len(found)}"
            figures = [key for key in found[0] if key != "solved"]
            row |= {f"{who}: {key}": statistics.median(run[key] for run in found) for key in figures}
    if runs["SB3"]:
        row["ours to SB3"] = float(row["ours: seconds"]) / float(row["SB3: seconds"])  # type: ignore[arg-type]
    return row


if __name__ == "__main__":
    main()
