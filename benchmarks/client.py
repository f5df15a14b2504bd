"""An actor's client without an actor: joins, and pushes the same items over and over.

python -m benchmarks.client ADDRESS TRANSITIONS_PER_SECOND     until its standard input is closed
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

import numpy as np

from actor.client.connector import Connector
from actor.client.fetcher import ModelFetcher
from actor.client.pusher import Pusher
from actor.proxy import ReplayBufferProxy
from actor.stat import ActorCounters
from benchmarks.screens import life
from common.data import Items
from common.interfaces import Agent
from common.wire.trust import Trust

ROWS = 256
"""Transitions that are pushed over and over."""
FLUSH_SECONDS = 10.0


class Client:
    """An actor's client that has joined; leaving the context waits until every batch is acknowledged."""

    def __init__(self, address: str, trust: Trust) -> None:
        self._stopped = threading.Event()
        incarnation = int(np.random.default_rng().integers(1, 2**63))
        self._connector = Connector(address, incarnation, FLUSH_SECONDS, self._stopped, trust)
        joined = self._connector.join()
        self._fetcher = ModelFetcher(self._connector.get_model, self._stopped)
        self.config, self.schema, self.counters = joined.config, joined.schema, ActorCounters()
        self._pusher = Pusher(self._connector, joined, self._fetcher, self.counters, self._stopped)
        self._proxy = ReplayBufferProxy(joined.schema, joined.config.push, self._pusher)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._proxy.flush()
        unacknowledged = self._pusher.finish(FLUSH_SECONDS)
        self._stopped.set()
        self._fetcher.join(1.0)
        self._connector.close()
        if unacknowledged:
            raise SystemExit(f"{unacknowledged} batches were not acknowledged")

    def parts(self, rows_per_push: int) -> list[Items]:
        """The items in parts of ``rows_per_push`` rows.

        One row at a time, ``next_obs`` of a row and ``obs`` of the next one share memory, as a sampler's do.
        """
        items = life(self.schema, ROWS)
        if rows_per_push == 1:
            items["obs"] = np.concatenate([items["obs"][:1], items["next_obs"]])
            items["obs"], items["next_obs"] = items["obs"][:-1], items["obs"][1:]
        return [{k: v[i : i + rows_per_push] for k, v in items.items()} for i in range(0, ROWS, rows_per_push)]

    def push(self, items: Items) -> None:
        """Push as a sampler does; this blocks while the learner holds back acknowledgements."""
        self._proxy.push(items)

    def sync(self, agent: Agent) -> None:
        """Load the newest model into the agent, if it is newer than the one that the agent has."""
        model = self._fetcher.newer_than(self._proxy.version)
        if model is not None:
            agent.sync_model(model)
            self._proxy.version = model.version


def push_steadily(address: str, per_second: float) -> None:
    """Push ``per_second`` transitions a second, one at a time, until standard input is closed."""
    closed = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=await_end, daemon=True).start()
    with Client(address, Trust()) as client:
        parts, pushed, started = client.parts(1), 0, time.perf_counter()
        while not closed.wait(max(0.0, started + pushed / per_second - time.perf_counter())):
            for part in parts:
                client.push(part)
            pushed += ROWS
    sys.stdout.write(f"{pushed / (time.perf_counter() - started)}\n")


if __name__ == "__main__":
    push_steadily(sys.argv[1], float(sys.argv[2]))
