"""How long games wait for their actions: ``python -m benchmarks.games [--games 16] [--hz 60] [--seconds 20]``.

Each game is a process with the client in Python, over loopback. All have one service, with a DQN of 2x256.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import numpy as np

from benchmarks.acting import serving
from tests.conftest import ROOT

GAME = [sys.executable, str(ROOT / "benchmarks" / "game.py")]
CLIENT = {"PYTHONPATH": str(ROOT / "clients" / "python")}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.games", description=__doc__)
    for name, default in (("games", 16), ("hz", 60), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with serving("2x256") as (_, websocket):
        game = [*GAME, f"ws://{websocket.address}", str(given.hz), str(given.seconds)]
        games = [subprocess.Popen(game, stdout=subprocess.PIPE, env=CLIENT) for _ in range(given.games)]
        times = np.concatenate([json.loads(each.communicate()[0]) for each in games])
    p50, p99, most = (float(value) for value in np.percentile(times, (50, 99, 100)))
    late = float((times > 1000 / given.hz).mean())
    sys.stdout.write(
        f"{given.games} games at {given.hz} Hz, {len(times)} actions: median {p50:.2f} ms, 99th of 100 {p99:.2f} ms, "
        f"most {most:.1f} ms, {100 * late:.2f} % later than a frame; load {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
