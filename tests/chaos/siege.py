"""Everything of tests/security/hostile.py against a learner over TLS, while honest actors push: what it costs them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from benchmarks.client import ROWS, Client
from common.wire.channel import get_model, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from crossborder.inspecting.crossborder_health import check_health
from learner.commands.admin_client import AdminClient, AdminTrust
from tests.chaos.report import scratch, tell
from tests.chaos.soak import own_kib
from tests.conftest import ROOT
from tests.security.conftest import Secured

CLIENTS: Final = 2
PACES: Final = {"actors at 1,000 items/s each": 1000.0, "actors as fast as they can": float("inf")}
END_SECONDS: Final = 30.0
ASK_SECONDS: Final = 10.0


@contextmanager
def _pushing(secured: Secured, per_second: float) -> Iterator[None]:
    """Clients that push so many items a second each."""
    over = threading.Event()

    def push() -> None:
        with Client(secured.address, secured.trust()) as client:
            parts, pushed, started = client.parts(64), 0, time.perf_counter()
            while not over.wait(max(0.0, started + pushed / per_second - time.perf_counter())):
                for part in parts:
                    client.push(part)
                pushed += ROWS

    threads = [threading.Thread(target=push) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(END_SECONDS)


@contextmanager
def _attacked(secured: Secured, done: Counter[str]) -> Iterator[None]:
    """A process at nice 19 does its worst; what that was is added up at the end."""
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.security.hostile", secured.address, str(secured.certs)]
    attack = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield
    finally:
        told, _ = attack.communicate(timeout=END_SECONDS)
        done.update(json.loads(told))


def _ask(secured: Secured) -> None:
    """What nobody may keep out: a probe, an admin, and an actor that wants a model."""
    check_health(secured.address, secured.trust(token_file=None), ASK_SECONDS)
    trust = AdminTrust.model_validate({"ca": secured.path("ca.pem"), "token_file": secured.path("admin.token")})
    with closing(AdminClient(secured.address, trust)) as admin:
        admin.fetch_status()
    channel = open_channel(secured.address, watch_credentials(secured.address, secured.trust()).get())
    with closing(channel):
        assert list(get_model(channel)(pb.GetModelRequest(), timeout=ASK_SECONDS))


def _rate(secured: Secured, seconds: float) -> float:
    """Items stored per second, once all have settled."""
    time.sleep(1.0)
    memory = secured.server.run.memory
    before, started = memory.committed, time.perf_counter()
    time.sleep(seconds)
    return (memory.committed - before) / (time.perf_counter() - started)


def _compare(secured: Secured, rounds: int, seconds: float, done: Counter[str]) -> dict[str, float]:
    """Medians of the rates in turns without and with an attack."""
    alone, attacked = [], []
    for number in range(rounds):
        alone.append(_rate(secured, seconds))
        with _attacked(secured, done):
            attacked.append(_rate(secured, seconds))
            _ask(secured)
        tell(f"round {number}: {alone[-1]:.0f} items/s alone, {attacked[-1]:.0f} attacked")
    share = statistics.median(with_ / without for with_, without in zip(attacked, alone, strict=True))
    return {"alone": statistics.median(alone), "attacked": statistics.median(attacked), "share": share}


def besiege(rounds: int, seconds: float) -> dict[str, Any]:
    """So many turns of so many seconds, at each pace.

    Raises:
        AssertionError: ingest died, or its own memory has grown by more than 64 MiB.
        CrossborderError, RpcError: a probe, an admin or a joined actor was kept out.
    """
    done = Counter[str]()
    with scratch() as directory:
        made = Secured(directory, lost_seconds=6.0)
        with made.server:
            pid, rates = made.server.ingest.pid, {}
            before = own_kib(pid)
            for name, pace in PACES.items():
                with _pushing(made, pace):
                    rates[name] = _compare(made, rounds, seconds, done)
            grown = (own_kib(pid) - before) / 1024
            assert made.server.ingest.restarts == 0
            assert grown < 64, f"{grown} MiB"
    return {"rounds": rounds, "seconds": seconds, "rates": rates, "attacks": dict(done), "ingest_grown_mib": grown}
