"""TorchRL for ``benchmarks.peers``: its remote replay buffer over torch's RPC, as its distributed examples have it.

Needs torchrl. The learner is a second process of this file; the actor extends the replay by asynchronous calls.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed import rpc
from torchrl.data.replay_buffers import LazyTensorStorage, RemoteTensorDictReplayBuffer

from benchmarks.peer_loop import CAPACITY, WINDOW, Batches, Columns, make_model, serve
from benchmarks.recorded import Array

MODEL: dict[str, torch.Tensor] = {}
"""The learner's newest model."""


def join(name: str, rank: int, port: str) -> None:
    """Join the two processes by RPC."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=60)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)  # type: ignore[no-untyped-call]


def publish(version: int) -> None:
    """Make a model in the learner's process."""
    MODEL.update({name: torch.from_numpy(values) for name, values in make_model(version).items()})


def model() -> dict[str, torch.Tensor]:
    return MODEL


def count(replay: Any) -> int:
    """The steps that the learner has stored, asked in the learner's process."""
    return int(replay.local_value().write_count)


class TorchRLPeer:
    """The actor's end."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", "benchmarks.torchrl_peer", "learner", port]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        join("actor", 0, port)
        storage = LazyTensorStorage(CAPACITY)
        self._replay = rpc.remote("learner", RemoteTensorDictReplayBuffer, kwargs={"storage": storage})
        self._batches, self._on_their_way = Batches(self._send), deque[Any]()
        self._version, self.pids = 0, [self._process.pid]

    def _send(self, columns: Columns) -> None:
        while len(self._on_their_way) >= WINDOW:
            self._on_their_way.popleft().wait()
        steps = TensorDict(
            {name: torch.from_numpy(values) for name, values in columns.items()}, [len(columns["reward"])]
        )
        extend = RemoteTensorDictReplayBuffer.extend
        self._on_their_way.append(rpc.rpc_async("learner", extend, args=(self._replay, steps)))

    def add(self, step: tuple[Any, ...]) -> None:
        self._batches.add(step)

    def flush(self) -> None:
        self._batches.flush()
        while self._on_their_way:
            self._on_their_way.popleft().wait()

    def stored(self) -> int:
        return int(rpc.rpc_sync("learner", count, args=(self._replay,)))

    def publish(self) -> None:
        self._version += 1
        rpc.rpc_sync("learner", publish, args=(self._version,))

    def fetch(self) -> Mapping[str, Array]:
        return {name: values.numpy() for name, values in rpc.rpc_sync("learner", model).items()}


if __name__ == "__main__":
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if sys.argv[1] == "learner":
        join("learner", 1, sys.argv[2])
        sys.stdin.read()  # Until the actor has ended.
    else:
        serve(TorchRLPeer(), sys.argv[1])
    os._exit(0)  # A shutdown would wait for the other process.
