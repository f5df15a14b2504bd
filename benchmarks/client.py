"""An actor's client without an actor: joins, and pushes the same rows over and over.

python -m benchmarks.client ADDRESS STEPS_PER_SECOND     until its standard input is closed
"""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
import time
from types import TracebackType

from actor.client.connector import Connector
from actor.client.fetcher import ModelFetcher
from actor.client.pusher import Pusher
from actor.stat import ActorCounters
from benchmarks.screens import life
from common.data import NO_MODEL, Items
from common.interfaces import Agent
from common.wire.codec import buffer
from common.wire.trust import Trust

ROWS = 256
"""Rows that are pushed over and over."""
MOST_STEADY_ROWS, STEADY_SECONDS = 64, 0.01
"""A steady push has the steps of 10 ms, but at most 64: nearly all steps of a short measurement arrive within it."""
FLUSH_SECONDS = 10.0


class Client:
    """An actor's client that has joined; leaving the context waits until every batch is acknowledged."""

    def __init__(self, address: str, trust: Trust) -> None:
        self._stopped = threading.Event()
        self._connector = Connector(address, secrets.randbits(62) + 1, FLUSH_SECONDS, self._stopped, trust)
        joined = self._connector.join()
        self._fetcher = ModelFetcher(self._connector.get_model, self._stopped)
        self.config, self.schema, self.counters = joined.config, joined.schema, ActorCounters()
        self.pusher = Pusher(self._connector, joined, self._fetcher, self.counters, self._stopped)
        self.pusher.ready()  # It has no environment to build.
        self._version = NO_MODEL

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unacknowledged = self.pusher.finish(FLUSH_SECONDS)
        self._stopped.set()
        self._fetcher.end(1.0)
        self._connector.close()
        if unacknowledged:
            raise SystemExit(f"{unacknowledged} batches were not acknowledged")

    def parts(self, rows_per_push: int) -> list[Items]:
        """Rows of one lane in parts of ``rows_per_push``."""
        rows = life(self.schema, ROWS)
        return [{k: v[i : i + rows_per_push] for k, v in rows.items()} for i in range(0, ROWS, rows_per_push)]

    def push(self, rows: Items) -> None:
        """Push rows as one batch; this blocks while the learner holds back acknowledgements."""
        self.pusher.send(buffer(self.schema, rows, len(rows["lane"])), self._version)

    def sync(self, agent: Agent) -> None:
        """Load the newest model into the agent, if it is newer than the one that the agent has."""
        model = self._fetcher.newer_than(self._version)
        if model is not None:
            agent.sync_model(model)
            self._version = model.version


def push_steadily(address: str, per_second: float) -> None:
    """Push ``per_second`` steps a second until standard input is closed."""
    closed = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=await_end, daemon=True).start()
    with Client(address, Trust()) as client:
        size = max(1, min(MOST_STEADY_ROWS, int(per_second * STEADY_SECONDS)))
        parts, pushed, started = itertools.cycle(client.parts(size)), 0, time.perf_counter()
        while not closed.wait(max(0.0, started + pushed / per_second - time.perf_counter())):
            part = next(parts)
            client.push(part)
            pushed += len(part["lane"])
    sys.stdout.write(f"{pushed / (time.perf_counter() - started)}\n")


if __name__ == "__main__":
    push_steadily(sys.argv[1], float(sys.argv[2]))
