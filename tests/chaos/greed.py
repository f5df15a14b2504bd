"""One actor that pushes the largest batches as fast as it can, beside honest ones: what it costs them.

python -m tests.chaos.greed ADDRESS     is that actor, until its standard input is closed
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from benchmarks.screens import life
from common.config.run_config import load_config
from common.wire.codec import encode, schema_from_pb
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION
from learner.loop.server import LearnerServer
from learner.replay.limiter import RatioLimiter
from tests.chaos.report import scratch, tell
from tests.conftest import ROOT, wait_for

HONEST: Final = 4
PACE: Final = 300.0
"""Items per second of each honest actor."""
ALLOWED: Final = 3000.0
"""Items per second that the replay ratio allows to all, so an equal share is twice the pace of an honest actor."""
RATIOS: Final = {"free": None, "ratio 8": 8.0}
COSTS_AT_MOST: Final = 0.2
SETTLES_SECONDS: Final = 3.0
END_SECONDS: Final = 60.0


def push_greedily(address: str) -> None:
    """Push batches of as many rows as the learner takes, each as soon as the one before is acknowledged."""
    stop, free = threading.Event(), threading.Semaphore(2)

    def await_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=await_end, daemon=True).start()
    incarnation = int(np.random.default_rng().integers(1, 2**63))
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = pb_grpc.LearnerServiceStub(channel)
        join = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host="greedy", pid=1)
        joined = stub.Join(join, timeout=END_SECONDS)
        schema, rows = schema_from_pb(joined.schema), joined.limits.max_rows
        payload = encode(schema, life(schema, rows), rows)

        def batches() -> Iterator[pb.PushItemsRequest]:
            seq = 0
            while not stop.is_set():
                if free.acquire(timeout=0.1):
                    seq += 1
                    yield pb.PushItemsRequest(
                        incarnation=incarnation, seq=seq, schema_hash=joined.schema.hash, rows=rows, payload=payload
                    )

        acked, call = 0, stub.PushItems(batches())
        for response in call:
            for _ in range(response.acked_seq - acked):
                free.release()
            acked = response.acked_seq
            if stop.is_set():
                call.cancel()
                return


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[None]:
    """A process of ours until its standard input is closed."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        finally:
            process.kill()


@contextmanager
def _drawing(server: LearnerServer, per_second: float) -> Iterator[None]:
    """Draws as a trainer does that draws so many items a second, as far as the replay ratio lets it."""
    over, limiter = threading.Event(), RatioLimiter.of(server.config)

    def draw() -> None:
        control, memory, interval = server.control, server.run.memory, 0.01
        while not over.wait(interval):
            if limiter.may_sample(memory.committed, control.sampled):
                control.sampled += int(per_second * interval)
                server.ingest.release_held()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _rates(server: LearnerServer, seconds: float) -> tuple[float, float]:
    """Items stored per second of all honest actors and of the greedy ones, once all have settled."""
    time.sleep(SETTLES_SECONDS)
    before, started = server.actor_table["items"].copy(), time.perf_counter()
    time.sleep(seconds)
    rates = (server.actor_table["items"] - before) / (time.perf_counter() - started)
    greedy = server.actor_table["host"] == b"greedy"
    return float(rates[~greedy].sum()), float(rates[greedy].sum())


def _compare(directory: Path, ratio: float | None, rounds: int, seconds: float) -> dict[str, float]:
    """Medians of turns without and with a greedy actor."""
    settings = (
        "server.listen=127.0.0.1:0",
        "metrics.listen=null",
        f"replay.samples_per_insert={'null' if ratio is None else ratio}",
        "trainer.warmup_period=1000",
        f"run_dir={directory}",
    )
    alone, beside, greedy = [], [], []
    with ExitStack() as stack:
        server = stack.enter_context(LearnerServer(load_config(ROOT / "configs/cartpole.yaml", settings)))
        stack.enter_context(_drawing(server, ALLOWED * (ratio or 1.0)))
        for _ in range(HONEST):
            stack.enter_context(_process("benchmarks.client", server.ingest.address, str(PACE)))
        wait_for(lambda: server.control.actors_online == HONEST, "the honest actors")
        for number in range(rounds):
            alone.append(_rates(server, seconds)[0])
            with _process("tests.chaos.greed", server.ingest.address):
                honest, taken = _rates(server, seconds)
            beside.append(honest)
            greedy.append(taken)
            tell(f"round {number}: {alone[-1]:.0f} items/s alone, {honest:.0f} beside {taken:.0f} of a greedy actor")
    share = statistics.median(with_ / without for with_, without in zip(beside, alone, strict=True))
    return {
        "alone": statistics.median(alone),
        "beside": statistics.median(beside),
        "greedy": statistics.median(greedy),
        "share": share,
    }


def be_greedy(rounds: int, seconds: float) -> dict[str, Any]:
    """So many turns of so many seconds, with and without a replay ratio.

    Raises:
        AssertionError: the greedy actor cost the honest ones a fifth of their rate or more.
    """
    with scratch() as directory:
        rates = {
            name: _compare(directory / str(number), ratio, rounds, seconds)
            for number, (name, ratio) in enumerate(RATIOS.items())
        }
    for name, found in rates.items():
        assert found["share"] > 1 - COSTS_AT_MOST, f"{name}: {found}"
    return {"honest": HONEST, "pace": PACE, "rounds": rounds, "seconds": seconds, "rates": rates}


if __name__ == "__main__":
    push_greedily(sys.argv[1])
