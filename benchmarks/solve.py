"""Seconds from the command to the target score: the shipped configurations beside tuned settings of the peers.

    python -m benchmarks.solve --python PYTHON     an interpreter with stable-baselines3 and sbx

The peers have the settings of RL Baselines3 Zoo for the task (``benchmarks.zoo``). The seconds include processes,
imports, compilation and evaluations, since a user waits for all of them. All systems score the same greedy episodes
after the same numbers of environment steps, and may use both cores. For each seed they take turns. A run that does not
reach the target counts with the time that it took; ``solved`` says how many runs reached it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import zoo
from benchmarks.report import add_choice, learner_words, report, time_command
from common.errors import BudgetExhaustedError


@dataclass(frozen=True)
class Task:
    """A task, our configuration, and the settings of each peer, whose name begins with its package.

    The peers score every ``interval`` environment steps, as ours does.
    """

    config: str
    target: float
    episodes: int
    interval: int
    env: str
    env_steps: int
    peers: dict[str, dict[str, Any]]


CARTPOLE_STEPS: Final = 160_000
CARTPOLE_DQN: Final = {**zoo.CARTPOLE_DQN, "exploration_fraction": 0.16 * 50_000 / CARTPOLE_STEPS}
"""Explores for as many steps as the zoo's run of 50,000 steps."""
TASKS: Final = {
    "cartpole": Task(
        "cartpole",
        475.0,
        20,
        2000,
        "CartPole-v1",
        CARTPOLE_STEPS,
        {"stable_baselines3": CARTPOLE_DQN, "sbx": CARTPOLE_DQN},
    ),
    "pendulum": Task(
        "pendulum_fastsac",
        -200.0,
        10,
        500,
        "Pendulum-v1",
        20_000,
        {"stable_baselines3": zoo.PENDULUM_SAC, "sbx": zoo.PENDULUM_SAC, "sbx CrossQ": zoo.PENDULUM_CROSSQ},
    ),
    "pendulum_sac": Task(
        "pendulum",
        -200.0,
        10,
        500,
        "Pendulum-v1",
        20_000,
        {"stable_baselines3": zoo.PENDULUM_SAC, "sbx": zoo.PENDULUM_SAC},
    ),
}
"""``pendulum_sac`` is the task in which all have the same algorithm and its settings."""


def solve_ours(name: str, seed: int) -> dict[str, float]:
    """One run of the shipped configuration with one local actor, by the command of the README.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        settings = {"seed": seed, "metrics.listen": "127.0.0.1:0", "run_dir": f"{directory}/run"}
        words = learner_words(f"configs/{TASKS[name].config}.yaml", 1, settings)
        seconds, cpu, done = time_command(words)
    if done.returncode not in (0, BudgetExhaustedError.exit_code):
        raise RuntimeError(f"learner-server ended with exit code {done.returncode}: {done.stderr}")
    return {"solved": float(done.returncode == 0), "seconds": seconds, "CPU s": cpu}


def solve_peer(peer: str, name: str, seed: int, python: str) -> dict[str, float]:
    """One run of a peer, in a separate interpreter.

    Raises:
        RuntimeError: the run failed.
    """
    task = TASKS[name]
    job = {
        "package": peer.split(maxsplit=1)[0],
        "env": {"id": task.env},
        "seed": seed,
        "env_steps": task.env_steps,
        "episodes": task.episodes,
        "evaluations": task.env_steps // task.interval,
        "target": task.target,
        "settings": task.peers[peer],
    }
    seconds, cpu, done = time_command([python, str(Path(__file__).with_name("sb3.py")), json.dumps(job)])
    if done.returncode:
        raise RuntimeError(f"{peer} ended with exit code {done.returncode}: {done.stderr}")
    curve = json.loads(done.stdout.splitlines()[-1])["curve"]
    return {"solved": float(curve[-1][1] >= task.target), "seconds": seconds, "CPU s": cpu}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.solve", description=__doc__.splitlines()[0] if __doc__ else None)
    add_choice(parser, "tasks", TASKS)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--python", help="an interpreter with stable-baselines3 and sbx")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.tasks:
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in range(arguments.seeds):
            runs.setdefault("crossborder", []).append(solve_ours(name, seed))
            for peer in TASKS[name].peers if arguments.python else ():
                runs.setdefault(peer, []).append(solve_peer(peer, name, seed, arguments.python))
            sys.stdout.write(json.dumps({"task": name, "seed": seed, **{who: all_[-1] for who, all_ in runs.items()}}))
            sys.stdout.write("\n")
            sys.stdout.flush()
        rows += [{"task": name, "who": who, **summarize(found)} for who, found in runs.items()]
    report("solve", "from the command to the target score, everything counted", rows, arguments.seeds)


def summarize(runs: Sequence[dict[str, float]]) -> dict[str, object]:
    """Median, fastest and slowest seconds of the runs, their processor time, and how many reached the target."""
    seconds = [run["seconds"] for run in runs]
    return {
        "solved": f"{sum(run['solved'] for run in runs):.0f} of {len(runs)}",
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "CPU s": statistics.median(run["CPU s"] for run in runs),
    }


if __name__ == "__main__":
    main()
