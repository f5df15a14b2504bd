"""Environment steps of CartPole that PPO learns from in a second, beside stable-baselines3, without evaluations.

    python -m benchmarks.ppo_speed --python PYTHON     an interpreter with stable-baselines3

Both train for 100,320 steps of eight environments in one process, with the settings of RL Baselines3 Zoo: an opt step
learns twenty times from 256 steps. torch has one thread. They take turns, one seed after another; imports and the
building of environments and networks do not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.report import report
from benchmarks.returns import TASKS, ask_peer, configure
from learner.loop.in_turns import train_in_turns

TASK = "ppo_cartpole"


def rate_ours(seed: int) -> float:
    """Environment steps a second of ``sync-train``."""
    with tempfile.TemporaryDirectory() as directory:
        config = configure(TASK, "in turns", seed, Path(directory) / "run", {"trainer.eval_interval": "null"})
        result = train_in_turns(config)
    return result.samples_total / result.seconds


def rate_peer(seed: int, python: str) -> float:
    """Environment steps a second of stable-baselines3; the time of its one episode of evaluation is taken off."""
    found = ask_peer(TASK, "stable_baselines3", seed, python, episodes=1, evaluations=1)
    return float(TASKS[TASK].env_steps / (found["seconds"] - found["eval_seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.ppo_speed", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", required=True, help="an interpreter with stable-baselines3")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    pairs = [(rate_ours(seed), rate_peer(seed, arguments.python)) for seed in range(arguments.turns)]
    ours, theirs = zip(*pairs, strict=True)
    ratio = statistics.median(mine / other for mine, other in pairs)
    rows = [
        {
            "who": who,
            "steps/s": statistics.median(rates),
            "slowest": min(rates),
            "fastest": max(rates),
            "ours to it": to,
        }
        for who, rates, to in (("crossborder", ours, 1.0), ("stable-baselines3", theirs, ratio))
    ]
    report("ppo_speed", "environment steps learnt from, CartPole", rows, arguments.turns)


if __name__ == "__main__":
    main()
