"""Minutes from the command until a shipped configuration reaches its target, on the GPU and all cores of the host.

The learner and its local actors start as a user starts them. Every few seconds their /metrics are read: the steps that
the learner acknowledged, opt steps, the best score. Meanwhile the GPU is watched, and py-spy, if it is installed, once
samples trainer, ingest and an actor. A run whose time is up is stopped in order; its curve so far is a result too, and
``--resume`` of its directory, which is kept, goes on from there.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.gpu_host.host import watch_gpu
from benchmarks.gpu_host.part import Budget, give, read_arguments, tell
from benchmarks.hotspots import PATIENCE, SECONDS, SHOWN, Watched
from common.cores import write_cores
from common.system import usable_cores

CONFIGS: Final = {"pong": "pong_gpu", "humanoid": "fastsac_humanoid_gpu"}
LEARNER_CORES: Final = 3
"""For trainer, ingest and evaluator."""
ACTORS: Final = 13
"""Each has one of the other cores, of 16."""
LOOK_SECONDS, REHEARSED_SECONDS = 5.0, 1.0
"""The time between two looks at a run, and at the run of a rehearsal."""
END_SECONDS: Final = 20.0
"""From the order to stop until the run has saved its last policy."""
SERIES: Final = {
    "steps": "crossborder_stored_steps_total",
    "opt steps": "crossborder_opt_steps_total",
    "opt seconds": "crossborder_opt_seconds_total",
    "wait seconds": "crossborder_trainer_wait_seconds_total",
    "best score": "crossborder_best_score",
    "policy lag": "crossborder_policy_lag_opt_steps",
}
PROCESSES: Final = {"ingest": "ingest", "worker-0": "actor"}
"""By their names in top(1), processes of the learner."""


@dataclass
class Look:
    """What /metrics said at a moment, in seconds since the command."""

    at: float
    values: dict[str, float]


class Run:
    """A learner and its local actors, started by the command of the README.

    Args:
        task: a key of ``CONFIGS``.
        budget: of the part.
        run_dir: of the run; if it holds a run, that run is resumed.
    """

    def __init__(self, task: str, budget: Budget, run_dir: Path) -> None:
        self.run_dir, self._began = run_dir, time.monotonic()
        resume = ["--resume"] if (run_dir / "run.json").exists() else []
        command = [sys.executable, "-m", "learner", "--config", f"configs/{CONFIGS[task]}.yaml", *resume]
        actors = budget.shrink(ACTORS)
        own = usable_cores()[: budget.shrink(LEARNER_CORES)]
        settings = {
            "run_dir": str(run_dir),
            "server.listen": "127.0.0.1:0",
            "metrics.listen": "127.0.0.1:0",
            "trainer.device": budget.device,
            "trainer.cores": write_cores(own),
            **(shrink_settings(task, budget) if budget.share > 1 else {}),
        }
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen([*command, "--local-actors", str(actors)])

    @property
    def elapsed(self) -> float:
        """Seconds since the command."""
        return time.monotonic() - self._began

    def look(self) -> Look | None:
        """What /metrics says; None before both processes serve it, and after they ended."""
        try:
            ends = json.loads((self.run_dir / "endpoints.json").read_text())
            texts = [
                urllib.request.urlopen(f"http://127.0.0.1:{ends[port]}/metrics", timeout=LOOK_SECONDS).read().decode()
                for port in ("trainer_metrics_port", "ingest_metrics_port")
            ]
        except OSError:
            return None
        return Look(self.elapsed, read_series("\n".join(texts)))

    def stop(self, seconds: float) -> int:
        """Ask the run to end, wait until it has, and return its exit code; after these seconds it is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def shrink_settings(task: str, budget: Budget) -> dict[str, Any]:
    """Settings that make a task small: its batches, its replay and its warm-up, and records soon."""
    config = yaml.safe_load(Path(f"configs/{CONFIGS[task]}.yaml").read_text())
    batch, lanes = config["agent"]["params"]["batch_size"], config["env"]["params"]["num_envs"]
    return {
        "agent.params.batch_size": budget.shrink(batch, 8),
        "env.params.num_envs": budget.shrink(lanes, 2),
        "env.eval_params.num_envs": 1,
        "evaluator.episodes": 1,
        "push.n_buffer": 16,
        "replay.capacity": budget.shrink(config["replay"]["capacity"]),
        "trainer.warmup_period": budget.shrink(config["trainer"]["warmup_period"]),
        "trainer.record_interval": 20,
    }


def read_series(text: str) -> dict[str, float]:
    """The values of ``SERIES`` in the text of /metrics."""
    found = {name: re.search(rf"^{series} (\S+)$", text, re.MULTILINE) for name, series in SERIES.items()}
    return {name: float(match.group(1)) for name, match in found.items() if match}


def read_curve(run_dir: Path) -> list[tuple[float, float, float]]:
    """Seconds, environment steps and score of each evaluation in metrics.csv; empty before the first record."""
    path = run_dir / "metrics.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            (float(row["seconds"]), float(row["samples_total"]), float(row["eval_reward"]))
            for row in csv.DictReader(file)
            if row.get("eval_reward")
        ]


def find_processes(trainer: int) -> dict[str, int]:
    """The trainer, and its processes of ``PROCESSES``, which are forked from its children."""
    names, parents = dict[int, str](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            before, _, after = path.read_text().rpartition(")")
            pid = int(path.parent.name)
            names[pid], parents[pid] = before.partition("(")[2], int(after.split()[1])
    below = [pid for pid in parents if parents.get(parents[pid]) == trainer]
    return {"trainer": trainer} | {PROCESSES[names[pid]]: pid for pid in below if names[pid] in PROCESSES}


def give_hotspots(task: str, trainer: int, directory: Path) -> None:
    """Sample the stacks of trainer, ingest and an actor, if py-spy is installed; print the functions found."""
    program = shutil.which("py-spy")
    if program is None:
        return
    watched = {name: Watched(program, pid, directory / name) for name, pid in find_processes(trainer).items()}
    for name, process in watched.items():
        cores, shares = process.shares()
        give(task=task, process=name, **{"busy cores": cores}, functions=dict(list(shares.items())[:SHOWN]))


def solve(task: str, budget: Budget, run_dir: Path) -> None:
    """Train until the target, or until the time is up; print what was found.

    A rehearsal ends as soon as two looks at opt steps can say how fast they are.
    """
    look_seconds = LOOK_SECONDS if budget.share == 1 else REHEARSED_SECONDS
    with watch_gpu() as gpu, tempfile.TemporaryDirectory() as directory:
        run = Run(task, budget, run_dir)
        looks: list[Look] = []
        sampled = False
        while run.process.poll() is None and (left := budget.left - max(5.0, END_SECONDS / budget.share)) > 0:
            try:
                run.process.wait(min(look_seconds, left))
            except subprocess.TimeoutExpired:
                look = run.look()
                if look is not None:
                    looks.append(look)
                    tell(
                        f"{look.at:.0f} s: " + ", ".join(f"{name} {value:,.0f}" for name, value in look.values.items())
                    )
                if budget.share > 1 and rates(begun(looks)).get("opt steps/s"):
                    break
                if not sampled and budget.share == 1 and begun(looks) and budget.left > SECONDS + PATIENCE:
                    sampled = True
                    give_hotspots(task, run.process.pid, Path(directory))
        seconds, reached = run.elapsed, run.process.poll() == 0
        code = run.stop(max(END_SECONDS, budget.left))
        if code not in (0, 128 + signal.SIGTERM):
            sys.exit(f"learner-server ended with exit code {code}")
    give(
        task=task,
        reached=reached,
        seconds=round(seconds, 1),
        best=max((score for _, _, score in read_curve(run_dir)), default=None),
        **rates(begun(looks)),
        gpu=gpu,
        curve=read_curve(run_dir),
        run_dir=str(run_dir),
    )


def begun(looks: list[Look]) -> list[Look]:
    """The looks since opt steps began."""
    return [look for look in looks if look.values.get("opt steps", 0) > 0]


def rates(looks: list[Look]) -> dict[str, float]:
    """Acknowledged steps and opt steps a second while learning, and what the trainer did; nothing without two looks."""
    if len(looks) < 2:
        return {}
    first, last = looks[0], looks[-1]
    span = last.at - first.at
    growth = {name: (last.values[name] - first.values.get(name, 0.0)) / span for name in last.values}
    return {
        "steps": last.values["steps"],
        "opt steps": last.values["opt steps"],
        "steps/s": growth["steps"],
        "opt steps/s": growth["opt steps"],
        "share of opt": growth["opt seconds"],
        "share of waiting for steps": growth["wait seconds"],
    }


def main() -> None:
    budget, task = read_arguments(__doc__, CONFIGS)
    memory = Path("/dev/shm")  # noqa: S108 - a disk would be written at 200 MB/s
    root = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    if budget.share > 1:
        with tempfile.TemporaryDirectory(dir=root) as directory:
            solve(task, budget, Path(directory) / "run")
    else:
        solve(task, budget, root / f"crossborder-{task}")


if __name__ == "__main__":
    main()
