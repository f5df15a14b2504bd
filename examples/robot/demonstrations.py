"""Writes demonstrations of a script that presses the button, clumsily.

    python -m examples.robot.demonstrations runs/robot-demonstrations

Each episode is one ``.npz`` file, see ``common.episode_files``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crossborder import Array, Items, write_episode
from examples.robot.arm import PressButton
from examples.robot.expert import press


def demonstrate(arm: PressButton, seed: int, noise: float) -> Items:
    """Play one episode with a noisy script; its arrays are those of ``common.episode_files``."""
    rng = np.random.default_rng(seed)
    observations, actions, rewards = [arm.reset(seed=seed)[0]], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        actions.append(press(arm, noise, rng))
        obs, reward, terminated, truncated, _ = arm.step(actions[-1])
        observations.append(obs)
        rewards.append(reward)
    columns: dict[str, Array] = {
        f"obs/{name}": np.stack([obs[name] for obs in observations]) for name in observations[0]
    }
    columns |= {"action": np.stack(actions), "reward": np.array(rewards, np.float32)}
    return columns | {"terminated": np.array(terminated), "truncated": np.array(truncated)}


def write_demonstrations(folder: Path, episodes: int, noise: float) -> int:
    """Write episodes to a new folder.

    Args:
        folder: of the files.
        episodes: the number of files.
        noise: standard deviation of the noise on each action.

    Returns:
        The number of their steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arm, steps = PressButton(), 0
    for episode in range(episodes):
        columns = demonstrate(arm, episode, noise)
        write_episode(folder / f"episode-{episode:03d}.npz", columns)
        steps += len(columns["reward"])
    arm.close()
    return steps


def main(argv: Sequence[str] | None = None) -> None:
    """Write demonstrations, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--episodes", type=int, default=20, help="files (default: 20)")
    parser.add_argument("--noise", type=float, default=0.5, help="noise of the actions (default: 0.5)")
    arguments = parser.parse_args(argv)
    steps = write_demonstrations(arguments.folder, arguments.episodes, arguments.noise)
    print(f"{arguments.episodes} episodes of {steps} steps in {arguments.folder}")  # noqa: T201


if __name__ == "__main__":
    main()
