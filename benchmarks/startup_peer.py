"""Train DQN in CartPole with stable-baselines3 or sbx until its first gradient step; imports nothing of crossborder.

python startup_peer.py WARM_UP PACKAGE
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium
import torch


def main() -> None:
    torch.set_num_threads(1)
    warm_up, package = int(sys.argv[1]), sys.argv[2]
    dqn: Any = importlib.import_module(package).DQN

    class Announcing(dqn):  # type: ignore[misc] # without the package it has no type
        """DQN that prints a line after its first gradient step, and stops then."""

        def train(self, *arguments: Any, **named: Any) -> None:
            super().train(*arguments, **named)
            sys.stdout.write("the first opt step was taken\n")
            sys.stdout.flush()
            sys.exit(0)

    env = gymnasium.make("CartPole-v1")
    settings = {"learning_starts": warm_up, "policy_kwargs": {"net_arch": [256, 256]}, "train_freq": 1}
    Announcing("MlpPolicy", env, device="cpu", **settings).learn(10 * warm_up)


if __name__ == "__main__":
    main()
