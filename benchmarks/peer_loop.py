"""The actor's part of the work in the processes of peers; it imports nothing of crossborder but recorded environments.

The only argument is a ``Job`` in JSON. Each line on standard input is a question in JSON, each line on standard output
an answer. The first answer, ``{"pids"}``, names the processes of the learner's side. ``{"do": "push", "seconds",
"way"}`` is answered by ``{"steps", "seconds", "cpu"}``: steps that were taken and stored, and wall-clock and processor
time of the actor; ``way`` is the number of steps in a batch, or one of the peer's own ways. ``{"do": "fetch", "n"}`` is
answered by ``{"milliseconds", "cpu"}``: of each fetch of a new model, and processor time of all. ``{"do": "fetch
together", "rounds"}`` is answered by ``{"per_second"}``: of all clients, which fetch each model at the same time.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from benchmarks.recorded import Array, Recorded, lanes_of

BATCH: Final = 100
"""Steps of a batch, if a peer makes batches itself."""
WINDOW: Final = 4
"""Batches on their way, as many as our default (``push.window``)."""
LANES: Final = 64
PATIENCE: Final = 300.0
SHAPES: Final = {"0.weight": (1300, 4), "0.bias": (1300,), "1.weight": (1300, 1300), "1.bias": (1300,), "2": (2, 1300)}
"""A model of 1.7 million parameters."""
_RNG: Final = np.random.default_rng(0)
RANDOM: Final = {name: _RNG.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
Columns = dict[str, Array]
Step = tuple[Any, ...]
Fetch = Callable[[], Mapping[str, Array]]


@dataclass(frozen=True)
class Job:
    """What the processes of a peer are for.

    Args:
        directory: of the recordings.
        kind: of ``GAMES``.
        has_network: whether actors and learner may use nothing but sockets, as two hosts would.
        clients: the number of further processes that fetch models.
    """

    directory: str
    kind: str = "cartpole"
    has_network: bool = False
    clients: int = 0


class CartPole:
    """Steps of one lane; a step is a finished transition."""

    capacity: Final = 1_000_000
    dtypes: Final = {
        "obs": np.float32,
        "action": np.int64,
        "reward": np.float32,
        "next_obs": np.float32,
        "terminated": np.bool_,
        "truncated": np.bool_,
    }

    def __init__(self, directory: str) -> None:
        self._env = Recorded(directory, "cartpole")
        self._obs, _ = self._env.reset(seed=0)
        self._actions: list[int] = np.random.default_rng(0).integers(2, size=100_000).tolist()

    def play(self, n: int) -> list[Step]:
        """The next ``n`` steps."""
        env, obs, steps = self._env, self._obs, []
        for action in self._actions[:n]:
            next_obs, reward, terminated, truncated, _ = env.step(action)
            steps.append((obs, action, reward, next_obs, terminated, truncated))
            obs = env.reset()[0] if terminated or truncated else next_obs
        self._obs = obs
        return steps

    def columns(self, steps: list[Step]) -> Columns:
        """The steps as arrays, one row for each."""
        columns = zip(self.dtypes.items(), zip(*steps, strict=True), strict=True)
        return {name: np.array(values, dtype) for (name, dtype), values in columns}


class Pong:
    """Rounds of ``LANES`` lanes; a round has one picture for each lane, which is sent and stored once."""

    capacity: Final = 50_000
    names: Final = ("obs", "action", "reward", "terminated", "truncated")

    def __init__(self, directory: str) -> None:
        self._env = lanes_of(directory, "pong", LANES)
        self._env.reset()
        self._actions = np.zeros(LANES, np.int64)

    def play(self, n: int) -> list[Step]:
        """The rounds of the next ``n`` steps, a multiple of ``LANES``."""
        rounds = []
        for _ in range(n // LANES):
            obs, reward, terminated, truncated, _ = self._env.step(self._actions)
            rounds.append((obs, self._actions, reward, terminated, truncated))
        return rounds

    def columns(self, steps: list[Step]) -> Columns:
        """The rounds as arrays, one row for each lane of each."""
        return {name: np.concatenate(values) for name, values in zip(self.names, zip(*steps, strict=True), strict=True)}


Game = CartPole | Pong
GAMES: Final[Mapping[str, type[Game]]] = {"cartpole": CartPole, "pong": Pong}


class Peer(Protocol):
    """What a peer does with steps and models.

    Args:
        pids: the processes of the learner's side.
    """

    pids: list[int]

    def send(self, steps: list[Step], way: int | str) -> None:
        """Take some steps, which go in this way; this blocks while too many are on their way."""

    def flush(self) -> None:
        """Wait until each step is acknowledged."""

    def stored(self) -> int:
        """The steps that the learner has stored so far."""

    def publish(self) -> None:
        """Have the learner make a new model."""

    def fetch(self) -> Mapping[str, Array]:
        """The newest model, whose parameters are those of ``SHAPES``."""


def make_model(version: int) -> Columns:
    """The parameters of a model: random numbers, since a system may compress them."""
    return {name: values * np.float32(1 + version / 1000) for name, values in RANDOM.items()}


class Policy:
    """Arrays into which models are loaded."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch, self._parameters = fetch, make_model(0)

    def load(self) -> None:
        """Fetch the newest model, which must not be the one before."""
        model, former = self._fetch(), self._parameters["2"][0, 0]
        for name, values in model.items():
            np.copyto(self._parameters[name], values)
        if self._parameters["2"][0, 0] == former:
            raise SystemExit("expected another model than the one before, found the same")


class Clients:
    """Processes that fetch each model at the same time. They are forked, so make them before anything is connected.

    Args:
        n: how many.
        join: connects such a process, its number, to a learner's address; returns what fetches and loads a model.
    """

    def __init__(self, n: int, join: Callable[[str, int], Callable[[], object]]) -> None:
        context = multiprocessing.get_context("fork")
        self._addresses, self._barrier = context.SimpleQueue(), context.Barrier(n + 1, timeout=PATIENCE)
        self._processes = [context.Process(target=self._work, args=(join, i), daemon=True) for i in range(n)]
        for process in self._processes:
            process.start()

    def _work(self, join: Callable[[str, int], Callable[[], object]], number: int) -> None:
        try:
            load = join(self._addresses.get(), number)
            while True:
                self._barrier.wait()
                load()
                self._barrier.wait()
        finally:
            self._barrier.abort()  # Nobody waits for a process that failed.

    def connect(self, address: str) -> None:
        """Tell the processes where the learner is."""
        for _ in self._processes:
            self._addresses.put(address)

    def rate(self, publish: Callable[[], object], rounds: int) -> float:
        """Models a second that all together have loaded; ``publish`` runs ahead of each round and does not count."""
        spent = 0.0
        for _ in range(rounds):
            publish()
            began = time.perf_counter()
            self._barrier.wait()
            self._barrier.wait()
            spent += time.perf_counter() - began
        return len(self._processes) * rounds / spent

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()


def push(peer: Peer, game: Game, seconds: float, way: int | str) -> dict[str, float]:
    """Play and push for some seconds, and wait until all is stored."""
    batch, steps, before = way if isinstance(way, int) else BATCH, 0, peer.stored()
    began, computed = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        peer.send(game.play(batch), way)
        steps += batch
    peer.flush()
    elapsed, computed = time.perf_counter() - began, time.process_time() - computed
    if (stored := peer.stored() - before) != steps:
        raise SystemExit(f"expected the learner to have stored {steps} steps, found {stored}")
    return {"steps": steps, "seconds": elapsed, "cpu": computed}


def fetch(peer: Peer, n: int) -> dict[str, object]:
    """Fetch models, a new one each time, and load each into arrays."""
    policy, milliseconds, computed = Policy(peer.fetch), [], 0.0
    for _ in range(n):
        peer.publish()
        cpu, began = time.process_time(), time.perf_counter()
        policy.load()
        milliseconds.append((time.perf_counter() - began) * 1e3)
        computed += time.process_time() - cpu
    return {"milliseconds": milliseconds, "cpu": computed}


def serve(start: Callable[[Job, Game, Callable[[str], None]], Peer], join: Callable[[Job, str, int], Fetch]) -> None:
    """Answer questions until standard input is closed.

    Args:
        start: starts the learner, says its address, and connects this process, the actor.
        join: connects a client, its number, to the address.
    """
    job = Job(**json.loads(sys.argv[1]))

    def join_policy(address: str, number: int) -> Callable[[], object]:
        return Policy(join(job, address, number)).load

    with closing(Clients(job.clients, join_policy)) as clients:
        game = GAMES[job.kind](job.directory)
        peer = start(job, game, clients.connect)
        say({"pids": peer.pids})
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "push":
                say(push(peer, game, asked["seconds"], asked["way"]))
            elif asked["do"] == "fetch":
                say(fetch(peer, asked["n"]))
            else:
                say({"per_second": clients.rate(peer.publish, asked["rounds"])})


def say(answer: Mapping[str, object]) -> None:
    sys.stdout.write(f"ANSWER {json.dumps(answer)}\n")
    sys.stdout.flush()
