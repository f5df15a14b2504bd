"""A game that learns: ``example.py [ADDRESS]``. Its interface is that of gym before 0.26, and it needs no package.

learner-server --config clients/catch.yaml
policy-server --learner 127.0.0.1:50051 --websocket 127.0.0.1:50061
python3.8 clients/python/example.py
"""

from __future__ import annotations

import random
import sys
from typing import Any

from crossborder_client import Session

N = 100


class Catch:
    """A ball falls, and a paddle catches it. Lengths are in widths of the field, which is as high as it is wide."""

    SPEED, REACH = 0.05, 0.1

    def seed(self, seed: int) -> None:
        self.random = random.Random(seed)

    def reset(self) -> list[float]:
        self.x, self.y, self.paddle = self.random.random(), 1.0, 0.5
        self.drift = self.random.uniform(-0.02, 0.02)
        return self.look()

    def step(self, action: int) -> tuple[list[float], float, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + self.SPEED * (action - 1), 0.0), 1.0)
        self.x, self.y = self.x + self.drift, self.y - self.SPEED
        if not 0.0 <= self.x <= 1.0:
            self.x, self.drift = min(max(self.x, 0.0), 1.0), -self.drift
        done = self.y < self.SPEED / 2
        reward = (1.0 if abs(self.x - self.paddle) <= self.REACH else -1.0) if done else 0.0
        return self.look(), reward, done, {}

    def look(self) -> list[float]:
        return [2 * self.x - 1, 2 * self.y - 1, 25 * self.drift, 2 * self.paddle - 1]


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:50061"
    caught = 0
    with Session(address) as session:
        for n, score in enumerate(session.episodes(Catch()), 1):
            caught += score > 0
            if n % N == 0:
                print(f"{n} balls: of the last {N}, {caught} were caught; model {session.version}", flush=True)
                caught = 0
    print("The run has ended.")


if __name__ == "__main__":
    main()
