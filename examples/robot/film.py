"""Films a saved policy as an animated GIF.

    python -m examples.robot.film runs/robot/run/best policy.gif

The pictures of the scene's two cameras are side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from PIL import Image

from crossborder import Agent, Array, load_agent
from examples.robot.arm import CONTROL_HZ, PressButton

SIZE: Final = (360, 180)
"""Width and height of the GIF."""


def play(agent: Agent, arm: PressButton, seed: int) -> Iterator[Array]:
    """Play one greedy episode; yield its pictures, uint8 ``[H, W, 3]``."""
    obs, _ = arm.reset(seed=seed)
    ended = False
    while not ended:
        yield arm.render()
        action = agent.sample({name: leaf[None] for name, leaf in obs.items()})[0]
        obs, _, terminated, truncated, _ = arm.step(action)
        ended = terminated or truncated
    yield arm.render()


def film(checkpoint: Path, to: Path, episodes: int) -> None:
    """Write the first episodes that evaluations play as one GIF, in real time."""
    agent, _, _ = load_agent(checkpoint, ["examples"])
    agent.eval()
    arm = PressButton()
    frames = [frame for seed in range(episodes) for frame in play(agent, arm, 1000 + seed)]
    arm.close()
    pictures = [Image.fromarray(frame).resize(SIZE).quantize(64, Image.Quantize.FASTOCTREE) for frame in frames]
    pictures[0].save(to, save_all=True, append_images=pictures[1:], duration=1000 // CONTROL_HZ, loop=0)


def main(argv: Sequence[str] | None = None) -> None:
    """Film the policy of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a saved policy: RUN/best or RUN/final")
    parser.add_argument("to", type=Path, help="the GIF to write")
    parser.add_argument("--episodes", type=int, default=4, help="episodes (default: 4)")
    arguments = parser.parse_args(argv)
    film(arguments.checkpoint, arguments.to, arguments.episodes)


if __name__ == "__main__":
    main()
