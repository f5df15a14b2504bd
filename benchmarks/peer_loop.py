"""The actor's part of the work in the processes of peers; it imports nothing of crossborder but recorded environments.

Each line on standard input is a question in JSON, each line on standard output an answer. The first answer,
``{"pids"}``, names the processes of the learner's side. ``{"do": "push", "seconds"}`` is answered by ``{"steps",
"seconds", "cpu"}``: steps that were taken and stored, and wall-clock and processor time of the actor. ``{"do": "fetch",
"n"}`` is answered by ``{"milliseconds", "cpu"}``: of each fetch of a new model, and processor time of all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.recorded import Array, Recorded

BATCH: Final = 100
WINDOW: Final = 4
"""Steps of a batch and batches on their way, as many as our defaults (``push.n_buffer``, ``push.window``)."""
CAPACITY: Final = 1_000_000
SHAPES: Final = {"0.weight": (1300, 4), "0.bias": (1300,), "1.weight": (1300, 1300), "1.bias": (1300,), "2": (2, 1300)}
"""A model of 1.7 million parameters."""
NAMES: Final = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
DTYPES: Final = (np.float32, np.int64, np.float32, np.float32, np.bool_, np.bool_)
Columns = dict[str, Array]


class Peer(Protocol):
    """What a peer does with steps and models.

    Args:
        pids: the processes of the learner's side.
    """

    pids: list[int]

    def add(self, step: tuple[Any, ...]) -> None:
        """Take one step, the values of ``NAMES``; this blocks while too many are on their way."""

    def flush(self) -> None:
        """Wait until each step is acknowledged."""

    def stored(self) -> int:
        """The steps that the learner has stored so far."""

    def publish(self) -> None:
        """Have the learner make a new model."""

    def fetch(self) -> Mapping[str, Array]:
        """The newest model, whose parameters are those of ``SHAPES``."""


class Batches:
    """Collects steps, and sends columns of ``BATCH`` of them."""

    def __init__(self, send: Callable[[Columns], None]) -> None:
        self._send = send
        self._steps: list[tuple[Any, ...]] = []

    def add(self, step: tuple[Any, ...]) -> None:
        self._steps.append(step)
        if len(self._steps) == BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what there is."""
        if self._steps:
            columns = zip(NAMES, DTYPES, zip(*self._steps, strict=True), strict=True)
            self._send({name: np.array(values, dtype) for name, dtype, values in columns})
            self._steps.clear()


def make_model(version: int) -> Columns:
    """The parameters of a model."""
    return {name: np.full(shape, version, np.float32) for name, shape in SHAPES.items()}


def push(peer: Peer, env: Recorded, seconds: float) -> dict[str, float]:
    """Play and push for some seconds, and wait until all is stored."""
    actions, steps, before = np.random.default_rng(0).integers(2, size=BATCH).tolist(), 0, peer.stored()
    began, computed = time.perf_counter(), time.process_time()
    obs, _ = env.reset()
    while time.perf_counter() - began < seconds:
        for action in actions:
            next_obs, reward, terminated, truncated, _ = env.step(action)
            peer.add((obs, action, reward, next_obs, terminated, truncated))
            obs = env.reset()[0] if terminated or truncated else next_obs
        steps += BATCH
    peer.flush()
    elapsed, computed = time.perf_counter() - began, time.process_time() - computed
    if (stored := peer.stored() - before) != steps:
        raise SystemExit(f"expected the learner to have stored {steps} steps, found {stored}")
    return {"steps": steps, "seconds": elapsed, "cpu": computed}


def fetch(peer: Peer, n: int) -> dict[str, object]:
    """Fetch models, a new one each time, and load each into arrays."""
    policy, milliseconds, computed = make_model(0), [], 0.0
    for _ in range(n):
        peer.publish()
        cpu, began = time.process_time(), time.perf_counter()
        for name, values in peer.fetch().items():
            np.copyto(policy[name], values)
        milliseconds.append((time.perf_counter() - began) * 1e3)
        computed += time.process_time() - cpu
    return {"milliseconds": milliseconds, "cpu": computed}


def serve(peer: Peer, directory: str) -> None:
    """Answer questions until standard input is closed."""
    env = Recorded(directory, "cartpole")
    env.reset(seed=0)
    say({"pids": peer.pids, "actor": os.getpid()})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "push":
            say(push(peer, env, asked["seconds"]))
        else:
            say(fetch(peer, asked["n"]))


def say(answer: Mapping[str, object]) -> None:
    sys.stdout.write(f"ANSWER {json.dumps(answer)}\n")
    sys.stdout.flush()
