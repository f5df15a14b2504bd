"""Steps per second into the replay, acknowledged, through the actor's own client, over loopback.

The steps are CartPole's, or with ``--kind atari`` those of Pong, one picture of 84 x 84 each. The floor of each figure
is a gRPC server that only acknowledges payloads of the same size. Further columns have the same rate over TLS with a
token, and the processor time of ingest and of the client for a million steps. Steps that come one by one are measured
in ``benchmarks.rows``, with an environment and an agent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Client
from benchmarks.floor import floor_rate
from benchmarks.report import cpu_seconds, median, report, run_as_actors_do
from benchmarks.screens import life
from common.config.run_config import load_config
from common.wire.codec import encode
from common.wire.compression import compress
from learner.commands.authority import make_files
from learner.loop.server import LearnerServer, local_trust

SECONDS = 3.0
WINDOW = 64
FREE = ("server.listen=127.0.0.1:0", "metrics.trainer_port=null", "metrics.ingest_port=null")
KINDS: dict[str, tuple[str, ...]] = {
    "cartpole": (),
    "atari": (
        "env={target: benchmarks.screens:Screens, frame_stack: 4}",
        "agent={target: common.agents.dqn:DQN, params: {units: [1]}}",
        "replay.capacity=20000",
    ),
}


@contextmanager
def ingest(kind: str, batch: int, *more: str, encrypted: bool = False) -> Iterator[LearnerServer]:
    """Start a learner host whose actors push batches of ``batch`` rows; it trains only if the caller steps it."""
    with tempfile.TemporaryDirectory() as directory:
        secured = encrypt(Path(directory)) if encrypted else ()
        push = (f"push.n_buffer={batch}", f"push.window={WINDOW}", "push.flush_seconds=60", "push.spool_bytes=67108864")
        ours = (
            *FREE,
            *secured,
            *KINDS[kind],
            *push,
            "replay.view={}",  # One step in a transition.
            "replay.samples_per_insert=null",
            f"run_dir={directory}/run",
            *more,
        )
        with LearnerServer(load_config(Path("configs/cartpole.yaml"), ours)) as server:
            yield server


def encrypt(directory: Path) -> tuple[str, ...]:
    """Make certificates and tokens in a directory; the settings that name them."""
    make_files(directory, ["localhost"], 1, renew=False)
    tls = f"server.tls={{certificate: {directory}/server.pem, key: {directory}/server.key}}"
    return tls, f"server.actor_token_file={directory}/actor.token"


def push_rate(server: LearnerServer, batch: int) -> float:
    """Steps per second from the first push to the last acknowledgement."""
    before = server.buffer.inserted
    with Client(server.ingest.address, local_trust(server.config.server)) as client:
        parts, pushes, started = client.parts(batch), 0, time.perf_counter()
        while time.perf_counter() - started < SECONDS:
            for part in parts:
                client.push(part)
            pushes += len(parts)
    elapsed, stored = time.perf_counter() - started, server.buffer.inserted - before
    if stored != pushes * batch:
        raise SystemExit(f"expected {pushes * batch} steps in the replay, found {stored}")
    return stored / elapsed


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.ingest", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="cartpole")
    kind = parser.parse_args().kind
    rows = []
    for batch in (64, 256):
        with ingest(kind, batch) as server:
            pid = server.ingest.pid
            ingest_began, client_began = cpu_seconds(pid), time.process_time()
            rate = median(lambda server=server, n=batch: push_rate(server, n))  # type: ignore[misc]
            ingest_seconds, client_seconds = cpu_seconds(pid) - ingest_began, time.process_time() - client_began
            millions = server.buffer.inserted / 1e6
            schema = server.run.memory.schema
        with ingest(kind, batch, encrypted=True) as server:
            encrypted = median(lambda server=server, n=batch: push_rate(server, n))  # type: ignore[misc]
        payload = encode(schema, life(schema, batch), batch)
        size = len(compress(payload) if schema.has_pictures else payload)
        floor = median(lambda size=size: floor_rate(size, WINDOW))  # type: ignore[misc]
        rows.append(
            {
                "batch": batch,
                "rows per push": batch,
                "bytes/step": size / batch,
                "steps/s": rate,
                "messages/s": rate / batch,
                "floor messages/s": floor,
                "ratio": rate / batch / floor,
                "TLS ratio": encrypted / rate,
                "ingest CPU s/million": ingest_seconds / millions,
                "client CPU s/million": client_seconds / millions,
            }
        )
    report(f"ingest {kind}", "acknowledged, exactly once, finite values checked; plain, and TLS to plain", rows)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.ingest")
    main()
