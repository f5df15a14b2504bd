"""Environment steps of CartPole that PPO learns from in a second, beside stable-baselines3, without evaluations.

    python -m benchmarks.ppo_speed --python PYTHON     an interpreter with stable-baselines3

Both train for 100,320 steps of eight environments in one process, with the settings of RL Baselines3 Zoo: an opt step
learns twenty times from 256 steps. torch has one thread, so on a free core a second takes a second of processor time.
They take turns, one seed after another; imports do not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.report import report
from benchmarks.returns import TASKS, ask_peer, configure
from learner.loop.in_turns import train_in_turns

TASK = "ppo_cartpole"


def rate_ours(seed: int) -> tuple[float, float]:
    """Environment steps of ``sync-train`` for a second, and for a second of processor time."""
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as directory:
        config = configure(TASK, "in turns", seed, Path(directory) / "run", {"trainer.eval_interval": "null"})
        result = train_in_turns(config)
    return result.samples_total / result.seconds, result.samples_total / (time.process_time() - cpu)


def rate_peer(seed: int, python: str) -> tuple[float, float]:
    """The same of stable-baselines3; the time of its one episode of evaluation is taken off."""
    found = ask_peer(TASK, "stable_baselines3", seed, python, episodes=1, evaluations=1)
    steps, off = TASKS[TASK].env_steps, found["eval_seconds"]
    return steps / (found["seconds"] - off), steps / (found["cpu_seconds"] - off)


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.ppo_speed", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", required=True, help="an interpreter with stable-baselines3")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    pairs = [(rate_ours(seed), rate_peer(seed, arguments.python)) for seed in range(arguments.turns)]
    rows = []
    for who, rates in zip(("crossborder", "stable-baselines3"), zip(*pairs, strict=True), strict=True):
        wall, cpu = zip(*rates, strict=True)
        rows.append({"who": who, "steps/s": statistics.median(wall), "slowest": min(wall), "fastest": max(wall)})
        rows[-1] |= {"steps/CPU s": statistics.median(cpu)}
    report("ppo_speed", "environment steps learnt from, CartPole", rows, arguments.turns)


if __name__ == "__main__":
    main()
