"""How long games wait for their actions: ``python -m benchmarks.games [--games 16] [--hz 60] [--seconds 20]``.

Each game is a process with the client in Python, over loopback. All have one service, with a DQN of 2x256.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from common.config.actor_config import ActorConfig
from common.parts import build_parts
from common.plugins.part_config import EnvConfig, PluginConfig
from learner.storage.checkpoint import Checkpoints
from tests.conftest import ROOT, wait_for

GAME = [sys.executable, str(ROOT / "benchmarks" / "game.py")]
CLIENT = {"PYTHONPATH": str(ROOT / "clients" / "python")}


def _addresses(log: str) -> list[str]:
    """Where a service listens for WebSocket, by its log; empty before."""
    return re.findall(r"WebSocket on (\S+)", Path(log).read_text())


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.games", description=__doc__)
    for name, default in (("games", 16), ("hz", 60), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    spaces = {
        "observation": {"type": "Box", "low": -1, "high": 1, "shape": [4]},
        "action": {"type": "Discrete", "n": 3},
    }
    agent = PluginConfig(target="common.agents.dqn:DQN", params={"units": [256, 256]})
    config = ActorConfig(env=EnvConfig(target="my_game:Game", spaces=spaces), agent=agent)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb+") as log:
        Checkpoints(Path(folder), config, "run").save("best", build_parts(config, seed=3).agent, opt_steps=1)
        doors = ["--listen", "127.0.0.1:0", "--websocket", "127.0.0.1:0", "--allow", "my_game:Game"]
        words = [str(Path(sys.executable).with_name("policy-server")), "--run", folder, *doors]
        service = subprocess.Popen(words, stderr=log)
        try:
            wait_for(lambda: _addresses(log.name), "the service listens")
            address = f"ws://{_addresses(log.name)[0]}"
            game = [*GAME, address, str(given.hz), str(given.seconds)]
            games = [subprocess.Popen(game, stdout=subprocess.PIPE, env=CLIENT) for _ in range(given.games)]
            times = np.concatenate([json.loads(each.communicate()[0]) for each in games])
        finally:
            service.terminate()
            service.wait()
    p50, p99, most = (float(value) for value in np.percentile(times, (50, 99, 100)))
    late = float((times > 1000 / given.hz).mean())
    sys.stdout.write(
        f"{given.games} games at {given.hz} Hz, {len(times)} actions: median {p50:.2f} ms, 99th of 100 {p99:.2f} ms, "
        f"most {most:.1f} ms, {100 * late:.2f} % later than a frame; load {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
