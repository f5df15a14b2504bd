"""Clients of an acting service that play ``CountingEnv`` until they are killed, through whatever breaks.

python -m tests.chaos.players DOOR HOST:PORT FILE FIRST_TAG LANES     DOOR: grpc or websocket

Each environment has its own tag, from FIRST_TAG on, and another one in each session. The file counts the answers, for
whoever wants to know whether the client hangs. If an action is not the one for its observation, the client fails.
"""

from __future__ import annotations

import random
import sys
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from tests.conftest import ROOT
from tests.crossborder.serving.counting_client import SPEC, Client
from tests.crossborder.serving.services import Caller
from tests.parts import CountingEnv

CLIENT: Final = ROOT / "clients" / "python"
PATIENCE: Final = 600.0
LEAVE: Final = 0.003
"""How often a client by WebSocket closes its session, and opens another one."""
RECONNECT: Final = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)]
"""Without a pause, since the service may be back at once."""


class Counted(Client):
    """A client by gRPC, which cuts its own connection too, and leaves sessions without a word."""

    answers: Any

    def _ask(self, *given: Any, **fields: Any) -> list[int]:
        found = super()._ask(*given, **fields)
        self.answers[0] += 1
        return found


def play_by_websocket(address: str, answers: Any, tags: Any, n: int) -> None:
    """Play with the client that users copy into their programs."""
    sys.path.insert(0, str(CLIENT))
    from crossborder_client import Session

    rng = random.Random(next(tags))
    while True:
        with Session(f"ws://{address}", lanes=n, patience=PATIENCE) as session:
            _play_session(session, rng, answers, tags, n)


def _play_session(session: Any, rng: random.Random, answers: Any, tags: Any, n: int) -> None:
    actions, losses = list[Any](), -1
    while rng.random() >= LEAVE:
        if session.losses != losses:  # Other environments, since the former ones' last steps are lost.
            losses, envs = session.losses, [CountingEnv() for _ in range(n)]
            actions = session.act_lanes([env.reset(seed=next(tags))[0] for env in envs], restarted=[True] * n)
            answers[0] += 1
            continue
        lanes = sorted(rng.sample(range(n), rng.randint(1, n)))
        results = [_advance(envs[lane], actions[lane]) for lane in lanes]
        observations, rewards, terminated, truncated = map(list, zip(*results, strict=True))
        given = session.act_lanes(observations, rewards, terminated, truncated, lanes)
        answers[0] += 1
        for lane, action, *ends in zip(lanes, given, terminated, truncated, strict=True):
            actions[lane] = None if any(ends) else action


def _advance(env: CountingEnv, action: int | None) -> tuple[Any, float, bool, bool]:
    """Step, or begin the next episode if the last one has ended."""
    return (env.reset()[0], 0.0, False, False) if action is None else env.step(action)[:4]


def main() -> None:
    door, address, file, first_tag, lanes = sys.argv[1:]
    answers: Any = np.memmap(Path(file), "<u8", "w+", shape=(1,))
    if door == "websocket":
        play_by_websocket(address, answers, count(int(first_tag)), int(lanes))
        return
    with Caller(address, SPEC, grpc.insecure_channel(address, RECONNECT)) as caller:
        client = Counted(caller, count(int(first_tag)), int(lanes))
        client.answers = answers
        client.run()


if __name__ == "__main__":
    main()
