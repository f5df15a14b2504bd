"""The share of MountainCarContinuous' episodes in which a car that acts by noise alone reaches the flag.

    python -m benchmarks.noise

Actions are the noise itself, clipped to [-1, 1]; an episode ends at the flag or after 999 steps. The share depends on
no clock, so the load of the machine does not matter.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks.report import report
from common.agents.noise import ActionNoise, LaneNoise

EPISODES = 300
KINDS = ("gaussian", "pink", "ou")
STDS = (0.5, 1.0)


def share_of_arrivals(kind: str, std: float) -> float:
    """The share of ``EPISODES`` episodes, played at the same time, that reach the flag."""
    config = TypeAdapter[ActionNoise](ActionNoise).validate_python({"kind": kind, "std": std})
    noise = LaneNoise(config, 1, torch.Generator().manual_seed(0), torch.device("cpu"))
    env = gymnasium.make_vec("MountainCarContinuous-v0", num_envs=EPISODES, vectorization_mode="sync")
    env.reset(seed=0)
    noise.begin(np.ones(EPISODES, bool))
    has_arrived, is_over = np.zeros(EPISODES, bool), np.zeros(EPISODES, bool)
    while not is_over.all():
        _, _, terminated, truncated, _ = env.step(noise.draw(EPISODES).clamp(-1, 1).numpy())
        has_arrived |= terminated & ~is_over
        is_over |= terminated | truncated
    env.close()
    return float(has_arrived.mean())


def main() -> None:
    rows = [{"noise": kind} | {f"std {std:g}": f"{share_of_arrivals(kind, std):.0%}" for std in STDS} for kind in KINDS]
    report("noise", f"{EPISODES} episodes each", rows, runs=1)


if __name__ == "__main__":
    main()
