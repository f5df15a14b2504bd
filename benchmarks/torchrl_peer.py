"""TorchRL for ``benchmarks.peers``: its remote replay buffer over torch's RPC, as its distributed examples have it.

Needs torchrl. The learner is a second process of this file; the actor extends the replay by asynchronous calls. On one
host torch's RPC uses shared memory; with ``has_network`` it uses TCP alone, as between two hosts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed import rpc
from torchrl.data.replay_buffers import LazyTensorStorage, RemoteTensorDictReplayBuffer

from benchmarks.peer_loop import WINDOW, Fetch, Game, Job, Step, make_model, serve
from benchmarks.recorded import Array

MODEL: dict[str, torch.Tensor] = {}
"""The learner's newest model."""


def enter(job: Job, name: str, rank: int, port: str) -> None:
    """Join the processes of a job by RPC: the actor, the learner and the clients."""
    tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]} if job.has_network else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=60, **tcp)
    world = 2 + job.clients
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=options)  # type: ignore[no-untyped-call]


def publish(version: int) -> None:
    """Make a model in the learner's process."""
    MODEL.update({name: torch.from_numpy(values) for name, values in make_model(version).items()})


def model() -> dict[str, torch.Tensor]:
    return MODEL


def count(replay: Any) -> int:
    """The steps that the learner has stored, asked in the learner's process."""
    return int(replay.local_value().write_count)


def fetch() -> Mapping[str, Array]:
    """The learner's newest model."""
    return {name: values.numpy() for name, values in rpc.rpc_sync("learner", model).items()}


class TorchRLPeer:
    """The actor's end."""

    def __init__(self, job: Job, game: Game, announce: Callable[[str], None]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        announce(port)
        command = [sys.executable, "-m", "benchmarks.torchrl_peer", json.dumps(asdict(job)), port]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        enter(job, "actor", 0, port)
        storage = LazyTensorStorage(game.capacity)
        self._replay = rpc.remote("learner", RemoteTensorDictReplayBuffer, kwargs={"storage": storage})
        self._game, self._on_their_way = game, deque[Any]()
        self._version, self.pids = 0, [self._process.pid]

    def send(self, steps: list[Step], _: int | str) -> None:
        while len(self._on_their_way) >= WINDOW:
            self._on_their_way.popleft().wait()
        columns = {name: torch.from_numpy(values) for name, values in self._game.columns(steps).items()}
        batch, extend = TensorDict(columns, [len(columns["reward"])]), RemoteTensorDictReplayBuffer.extend
        self._on_their_way.append(rpc.rpc_async("learner", extend, args=(self._replay, batch)))

    def flush(self) -> None:
        while self._on_their_way:
            self._on_their_way.popleft().wait()

    def stored(self) -> int:
        return int(rpc.rpc_sync("learner", count, args=(self._replay,)))

    def publish(self) -> None:
        self._version += 1
        rpc.rpc_sync("learner", publish, args=(self._version,))

    def fetch(self) -> Mapping[str, Array]:
        return fetch()


def join(job: Job, address: str, number: int) -> Fetch:
    """Connect a further process."""
    enter(job, f"client{number}", 2 + number, address)
    return fetch


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        enter(Job(**json.loads(sys.argv[1])), "learner", 1, sys.argv[2])
        sys.stdin.read()  # Until the actor has ended.
    else:
        serve(TorchRLPeer, join)
    os._exit(0)  # A shutdown would wait for the other processes.
