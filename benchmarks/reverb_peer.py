"""Reverb for ``benchmarks.peers``: a replay server, to which a trajectory writer appends each step and an item of it.

Needs dm-reverb and tensorflow. The server is a second process of this file. An item is a step and the step after it,
each of which is stored once. The model is the only item of a table, as TF-Agents has it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import reverb

from benchmarks.peer_loop import BATCH, CAPACITY, SHAPES, WINDOW, make_model, serve
from benchmarks.recorded import Array


def start_server() -> None:
    """Run the server until standard input is closed."""
    fifo, uniform, at_least = reverb.selectors.Fifo, reverb.selectors.Uniform, reverb.rate_limiters.MinSize
    replay = reverb.Table("replay", uniform(), fifo(), max_size=CAPACITY, rate_limiter=at_least(1))
    model = reverb.Table("model", fifo(), fifo(), max_size=1, rate_limiter=at_least(1))
    server = reverb.Server([replay, model], port=None)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


class ReverbPeer:
    """The actor's end."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.reverb_peer", "server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._client = reverb.Client(f"127.0.0.1:{self._process.stdout.readline().strip()}")
        self._writer = self._client.trajectory_writer(num_keep_alive_refs=2)
        self._begins, self._appended, self._version = True, 0, 0
        self.pids = [self._process.pid]

    def add(self, step: tuple[Any, ...]) -> None:
        obs, action, reward, next_obs, terminated, truncated = step
        if self._begins:
            self._writer.append({"obs": obs, "action": action, "reward": reward, "terminated": terminated})
        self._begins = terminated or truncated
        self._writer.append({"obs": next_obs, "action": action, "reward": reward, "terminated": terminated})
        history = self._writer.history
        self._writer.create_item("replay", 1.0, {name: values[-2:] for name, values in history.items()})
        if self._begins:
            self._writer.end_episode(timeout_ms=60_000)
        self._appended += 1
        if self._appended % BATCH == 0:
            self._writer.flush(block_until_num_items=WINDOW * BATCH, timeout_ms=60_000)

    def flush(self) -> None:
        self._writer.flush(timeout_ms=60_000)

    def stored(self) -> int:
        return int(self._client.server_info()["replay"].rate_limiter_info.insert_stats.completed)

    def publish(self) -> None:
        self._version += 1
        self._client.insert(list(make_model(self._version).values()), {"model": 1.0})

    def fetch(self) -> Mapping[str, Array]:
        (sample,) = self._client.sample("model", 1, emit_timesteps=False)
        return {name: values[0] for name, values in zip(SHAPES, sample.data, strict=True)}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        start_server()
    else:
        serve(ReverbPeer(), sys.argv[1])
