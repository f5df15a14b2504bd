"""Ray for ``benchmarks.peers``: the actor calls methods of a Ray actor that keeps a replay and a model.

Needs ray. Batches are arguments of a call, so Ray serialises their arrays without pickling the data. The learner puts
each model into the object store when it publishes it, so a fetch is a call for the newest reference and a ``get``.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray

from benchmarks.peer_loop import CAPACITY, WINDOW, Batches, Columns, make_model, serve
from benchmarks.recorded import Array


class Learner:
    """A ring of transitions, and the newest model."""

    def __init__(self) -> None:
        self._ring: Columns = {}
        self._stored = self._version = 0
        self._model: Any = None

    def pid(self) -> int:
        return os.getpid()

    def store(self, columns: Columns) -> int:
        """Copy a batch into the ring."""
        if not self._ring:
            self._ring = {name: np.empty((CAPACITY, *each.shape[1:]), each.dtype) for name, each in columns.items()}
        rows = len(columns["reward"])
        at = np.arange(self._stored, self._stored + rows) % CAPACITY
        for name, values in columns.items():
            self._ring[name][at] = values
        self._stored += rows
        return self._stored

    def stored(self) -> int:
        return self._stored

    def publish(self) -> None:
        self._version += 1
        self._model = ray.put(make_model(self._version))

    def model(self) -> list[Any]:
        """The reference of the newest model, in a list: a reference itself would be followed."""
        return [self._model]


class RayPeer:
    """The actor's end."""

    def __init__(self) -> None:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
        self._learner: Any = ray.remote(Learner).remote()
        self._batches, self._on_their_way = Batches(self._send), deque[Any]()
        daemons = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        self.pids: list[int] = [ray.get(self._learner.pid.remote()), *map(int, daemons)]

    def _send(self, columns: Columns) -> None:
        while len(self._on_their_way) >= WINDOW:
            ray.get(self._on_their_way.popleft())
        self._on_their_way.append(self._learner.store.remote(columns))

    def add(self, step: tuple[Any, ...]) -> None:
        self._batches.add(step)

    def flush(self) -> None:
        self._batches.flush()
        while self._on_their_way:
            ray.get(self._on_their_way.popleft())

    def stored(self) -> int:
        return int(ray.get(self._learner.stored.remote()))

    def publish(self) -> None:
        ray.get(self._learner.publish.remote())

    def fetch(self) -> Mapping[str, Array]:
        (reference,) = ray.get(self._learner.model.remote())
        model: Mapping[str, Array] = ray.get(reference)
        return model


if __name__ == "__main__":
    serve(RayPeer(), sys.argv[1])
