"""kill -9 of an acting service, its clients and its learner, and broken connections, at any message and by each door.

No row is doubled, torn or in a wrong lane, no client gets an action for another observation, and no session hangs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Array, Items
from tests.chaos.audit import Audit, audit
from tests.chaos.fleet import BACK_SECONDS, Fleet
from tests.chaos.report import scratch, tell
from tests.clients.line import Line
from tests.conftest import Command, free_port, wait_for
from tests.parts import assert_complete

SPACING: Final = 20_000
"""Between the first tags of clients."""
LANES: Final = 2
DOORS: Final = ("grpc", "websocket")
KILLED: Final = ("service", "client", "learner", "ingest")
CUT: Final = ("grpc", "websocket", "learner")
"""The connections that break: those of the clients of a door, or of the service to its learner."""
HASTE: Final = 0.4
"""Share of the cuts after which the next connection breaks too, at one of its first messages."""
MOST_KEPT: Final = 40
"""Bytes of the message at which a connection breaks that still arrive, at most."""
MAX_INGEST_DEATHS: Final = 4
Fault = tuple[str, str]
"""What happens, and to whom."""


class ServedFleet(Fleet):
    """A learner, an acting service that is its only actor, and a client at each door."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 0, agent={"target": "tests.parts:CheckingLaneAgent"})
        self._clients_dir, self._stack = directory / "clients", ExitStack()
        self._clients_dir.mkdir()
        self._ports = {door: free_port() for door in DOORS}
        places = {**{door: f"127.0.0.1:{port}" for door, port in self._ports.items()}, "learner": self._address}
        self.lines = {name: self._stack.enter_context(Line.to(place)) for name, place in places.items()}
        self._service = self._start_service()
        self.n_clients = 0
        self._clients: dict[str, tuple[Command, Path]] = {door: self._start_client(door) for door in DOORS}

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._stack.close()

    def _start_service(self) -> Command:
        listen, websocket = (f"127.0.0.1:{self._ports[door]}" for door in DOORS)
        words = ["--listen", listen, "--websocket", websocket, "--set", "resume_seconds=10"]
        words += ["--learner", self.lines["learner"].address]
        return self._start("policy-server", *words, prefix=())

    def _start_client(self, door: str) -> tuple[Command, Path]:
        self.n_clients += 1
        file = self._clients_dir / str(self.n_clients)
        words = (door, self.lines[door].address, str(file), str(self.n_clients * SPACING), str(LANES))
        return self._start("tests.chaos.players", *words, prefix=()), file

    def answers(self) -> dict[Path, int]:
        """The answers that each client has had."""
        files = [file for _, file in self._clients.values()]
        return {file: int(np.fromfile(file, np.uint64).sum()) if file.exists() else 0 for file in files}

    def all_act(self, since: dict[Path, int]) -> None:
        """Wait until every client has had answers since then; one that hangs fails the exercise."""

        def act() -> bool:
            for client, _ in self._clients.values():
                assert client.process.poll() is None, client.output()
            return all(n > since.get(file, 0) + 2 * LANES for file, n in self.answers().items())

        wait_for(act, f"all clients act; logs in {self._directory}", BACK_SECONDS)

    def kill_one(self, victim: str, door: str) -> None:
        """kill -9, and start again."""
        if victim == "service":
            self._service.end()
            self._service = self._start_service()
        elif victim == "client":
            self._clients[door][0].end()
            self._clients[door] = self._start_client(door)
        else:
            self.kill("host" if victim == "learner" else "ingest")

    def end_all(self) -> tuple[Audit, int]:
        """End all in order; what became of the rows, and how many of them are in another lane than they should be.

        Raises:
            AssertionError: the rows of an environment are not exactly those of its first steps.
        """
        self.stop()
        assert self._service.wait(BACK_SECONDS) == 0, "the service hears of the end of its learner"
        rows, previous = self.stored()
        found = audit(rows, {}, within_sessions(rows, previous))
        assert found.is_clean, found
        assert_complete(rows, Counter(rows["obs"][~rows["final"], 0].astype(int).tolist()))
        return found, misplaced(rows)


def within_sessions(rows: Items, previous: Array) -> Array:
    """The links without those from a session's last final row to the next session of its lane, which are right."""
    first = np.unique(rows["obs"][:, 0], return_index=True)[1]
    before = first - previous[first]
    links = previous.copy()
    links[first[rows["final"][before] & (rows["lane"][before] == rows["lane"][first])]] = 0
    return links


def misplaced(rows: Items) -> int:
    """Rows in another lane than the first row of their environment."""
    _, first, mine = np.unique(rows["obs"][:, 0], return_index=True, return_inverse=True)
    return int(np.count_nonzero(rows["lane"] != rows["lane"][first][mine]))


def serve_through(kills: int, cuts: int, seed: int) -> dict[str, Any]:
    """So many kills of each process, and so many breaks of each connection, in one run; its figures.

    Raises:
        AssertionError: a row is doubled, torn or in a wrong lane, an action is wrong, or a client hangs.
    """
    rng, seconds = random.Random(seed), defaultdict[Fault, list[float]](list)
    faults: list[Fault] = [("kill -9 of", victim) for victim in KILLED * kills] + [
        ("cut of", line) for line in CUT * cuts
    ]
    n_faults = len(faults)
    rng.shuffle(faults)
    with scratch() as directory, ServedFleet(directory) as fleet:
        fleet.ready()
        fleet.all_act({})
        while faults:
            fleet.take(rng.randrange(60))
            answers, standing, began = fleet.answers(), fleet.standing(), time.monotonic()
            kind, what = fault = _next(faults, fleet)
            if kind == "cut of":
                _cut(fleet.lines[what], rng)
            else:
                fleet.kill_one(what, rng.choice(DOORS))
            fleet.all_act(answers)
            fleet.goes_on(standing)
            seconds[fault].append(time.monotonic() - began)
            tell(f"{n_faults - len(faults)} of {n_faults}, seed {seed}: {kind} {what}, {seconds[fault][-1]:.1f} s")
        found, in_wrong_lane = fleet.end_all()
    assert not in_wrong_lane
    took = {
        f"{kind} {what}": {"times": len(each), "median": statistics.median(each), "worst": max(each)}
        for (kind, what), each in sorted(seconds.items())
    }
    return {"seed": seed, **asdict(found), "in_wrong_lane": in_wrong_lane, "clients": fleet.n_clients, "faults": took}


def _next(faults: list[Fault], fleet: Fleet) -> Fault:
    """The next fault, of which it is taken; another kill of the learner if ingest has died as often as it may."""
    may_die = fleet.ingest_deaths < MAX_INGEST_DEATHS
    at = next((i for i, (_, what) in enumerate(faults) if may_die or what != "ingest"), None)
    return ("kill -9 of", "learner") if at is None else faults.pop(at)


def _cut(line: Line, rng: random.Random) -> None:
    """Break a connection at its next message in one direction; sometimes the one after it too, which resumes."""
    for _ in range(1 + (rng.random() < HASTE)):
        line.keeps = rng.choice([0, rng.randrange(MOST_KEPT)])
        line.breaks_at = rng.choice(["request", "answer"])
        wait_for(lambda: not line.breaks_at, "the connection breaks", BACK_SECONDS)
