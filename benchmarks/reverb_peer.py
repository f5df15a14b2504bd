"""Reverb for ``benchmarks.peers``: a replay server, to which a writer appends each step and an item of it.

Needs dm-reverb and tensorflow. The server is a second process of this file. An item is a step and the step after it,
each of which is stored once. The ``trajectory`` writer is told of each item, the ``structured`` one once of all. The
model is the only item of a table, as TF-Agents has it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import reverb

from benchmarks.peer_loop import BATCH, SHAPES, WINDOW, Fetch, Game, Job, Step, make_model, serve
from benchmarks.recorded import Array

COLUMNS = ("obs", "action", "reward", "terminated")


def start_server(capacity: int) -> None:
    """Run the server until standard input is closed."""
    fifo, uniform, at_least = reverb.selectors.Fifo, reverb.selectors.Uniform, reverb.rate_limiters.MinSize
    replay = reverb.Table("replay", uniform(), fifo(), max_size=capacity, rate_limiter=at_least(1))
    model = reverb.Table("model", fifo(), fifo(), max_size=1, rate_limiter=at_least(1))
    server = reverb.Server([replay, model], port=None)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


def fetch(client: Any) -> Mapping[str, Array]:
    """The server's newest model."""
    (sample,) = client.sample("model", 1, emit_timesteps=False)
    return {name: values[0] for name, values in zip(SHAPES, sample.data, strict=True)}


class ReverbPeer:
    """The actor's end."""

    def __init__(self, _: Job, game: Game, announce: Callable[[str], None]) -> None:
        command = [sys.executable, "-m", "benchmarks.reverb_peer", "server", str(game.capacity)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        address = f"127.0.0.1:{self._process.stdout.readline().strip()}"
        self._client = reverb.Client(address)
        step = reverb.structured_writer.create_reference_step(dict.fromkeys(COLUMNS))
        pattern = {name: step[name][-2:] for name in COLUMNS}
        config = reverb.structured_writer.create_config(pattern, "replay")
        self._writers: dict[int | str, Any] = {
            "trajectory": self._client.trajectory_writer(num_keep_alive_refs=2),
            "structured": self._client.structured_writer([config]),
        }
        self._begins, self._version = dict.fromkeys(self._writers, True), 0
        self.pids = [self._process.pid]
        announce(address)

    def send(self, steps: list[Step], way: int | str) -> None:
        writer, begins, makes_items = self._writers[way], self._begins[way], way == "trajectory"
        for obs, action, reward, next_obs, terminated, truncated in steps:
            if begins:
                writer.append({"obs": obs, "action": action, "reward": reward, "terminated": terminated})
            writer.append({"obs": next_obs, "action": action, "reward": reward, "terminated": terminated})
            if makes_items:
                writer.create_item("replay", 1.0, {name: values[-2:] for name, values in writer.history.items()})
            if begins := terminated or truncated:
                writer.end_episode(timeout_ms=60_000)
        self._begins[way] = begins
        writer.flush(block_until_num_items=WINDOW * BATCH, timeout_ms=60_000)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush(timeout_ms=60_000)

    def stored(self) -> int:
        return int(self._client.server_info()["replay"].rate_limiter_info.insert_stats.completed)

    def publish(self) -> None:
        self._version += 1
        self._client.insert(list(make_model(self._version).values()), {"model": 1.0})

    def fetch(self) -> Mapping[str, Array]:
        return fetch(self._client)


def join(job: Job, address: str, number: int) -> Fetch:  # noqa: ARG001 - as other peers need
    """Connect a further client."""
    return partial(fetch, reverb.Client(address))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        start_server(int(sys.argv[2]))
    else:
        serve(ReverbPeer, join)
