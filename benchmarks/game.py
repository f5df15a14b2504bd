"""One of the games of ``benchmarks.games``: ``game.py ADDRESS HZ SECONDS``. As a game, it needs only the client."""

from __future__ import annotations

import json
import sys
import time

from crossborder_client import Session


def play(address: str, hz: float, seconds: float) -> list[float]:
    """Ask for an action in each frame; the times of all but those of the first second, in milliseconds."""
    times = []
    with Session(address) as session:
        session.act([0.0] * 4)
        began = time.monotonic()
        for frame in range(int(hz * seconds)):
            time.sleep(max(0.0, began + frame / hz - time.monotonic()))
            asked = time.monotonic()
            session.act([frame % 7 / 7.0] * 4)
            times.append(1000 * (time.monotonic() - asked))
    return times[int(hz) :]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(play(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))))
