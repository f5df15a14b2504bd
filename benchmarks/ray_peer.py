"""Ray for ``benchmarks.peers``: the actor calls methods of a Ray actor that keeps a replay and a model.

Needs ray. Batches are arguments of a call, so Ray serialises their arrays without pickling the data. The learner puts
each model into the object store when it publishes it, so a fetch is a call for the newest reference and a ``get``.
Actor and learner share one node and its memory, or they have a node each (``has_network``), and objects travel from
node to node over sockets; then all actors share the second node.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from benchmarks.peer_loop import WINDOW, Columns, Fetch, Game, Job, Step, make_model, serve
from benchmarks.recorded import Array

NODE = {"num_cpus": 2, "object_store_memory": 1_000_000_000}


class Learner:
    """A ring of ``capacity`` transitions, and the newest model."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ring: Columns = {}
        self._stored = self._version = 0
        self._model: Any = None

    def pid(self) -> int:
        return os.getpid()

    def store(self, columns: Columns) -> int:
        """Copy a batch into the ring."""
        if not self._ring:
            ring = {name: np.empty((self._capacity, *each.shape[1:]), each.dtype) for name, each in columns.items()}
            self._ring = ring
        rows, at = len(columns["reward"]), self._stored % self._capacity
        first = min(rows, self._capacity - at)
        for name, values in columns.items():
            self._ring[name][at : at + first] = values[:first]
            self._ring[name][: rows - first] = values[first:]
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


def fetch(learner: Any) -> Mapping[str, Array]:
    """The learner's newest model."""
    (reference,) = ray.get(learner.model.remote())
    model: Mapping[str, Array] = ray.get(reference)
    return model


class RayPeer:
    """The actor's end."""

    def __init__(self, job: Job, game: Game, announce: Callable[[str], None]) -> None:
        head = {**NODE, "include_dashboard": False, "resources": {} if job.has_network else {"learner": 1}}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        if job.has_network:
            cluster.add_node(**NODE, resources={"learner": 1})
        ray.init(address=cluster.address, namespace="peers", log_to_driver=False)
        learner = ray.remote(Learner).options(name="learner", resources={"learner": 1})
        self._learner: Any = learner.remote(game.capacity)
        self._game, self._on_their_way = game, deque[Any]()
        daemons = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        self.pids: list[int] = [ray.get(self._learner.pid.remote()), *map(int, daemons)]
        announce(cluster.address)

    def send(self, steps: list[Step], _: int | str) -> None:
        while len(self._on_their_way) >= WINDOW:
            ray.get(self._on_their_way.popleft())
        self._on_their_way.append(self._learner.store.remote(self._game.columns(steps)))

    def flush(self) -> None:
        while self._on_their_way:
            ray.get(self._on_their_way.popleft())

    def stored(self) -> int:
        return int(ray.get(self._learner.stored.remote()))

    def publish(self) -> None:
        ray.get(self._learner.publish.remote())

    def fetch(self) -> Mapping[str, Array]:
        return fetch(self._learner)


def join(job: Job, address: str, number: int) -> Fetch:  # noqa: ARG001 - as other peers need
    """Connect a further driver."""
    ray.init(address=address, namespace="peers", log_to_driver=False)
    return partial(fetch, ray.get_actor("learner"))


if __name__ == "__main__":
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's workers would have a lower priority than ours
    serve(RayPeer, join)
