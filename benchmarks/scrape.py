"""A scrape of ingest's /metrics with a table full of actors: bytes, series, processor time.

    python -m benchmarks.scrape                  1,024 actors, with and without series of each
    python -m benchmarks.scrape --actors 4096

The table is filled by hand; the time is that of collecting and writing the text, without the socket.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import prometheus_client

from common.config import run_config
from common.parts import build_parts
from learner.ingest.ingest_metrics import FIRST_RATE_SECONDS, IngestCollector
from learner.shared.actor_table import REPORTED, ActorState, map_actor_table
from tests.conftest import counting_config
from tests.learner.ingest.cores import LoneCore

REPEATS: Final = 9


def fill(lone: LoneCore, directory: Path, actors: int) -> None:
    """Enter actors that are online and have reported every figure."""
    random, table = np.random.default_rng(0), map_actor_table(directory, create=False)
    for i in range(actors):
        lone.core.registry.join(i + 1, f"host-{i:04d}.example", i + 1, name=f"rack-{i % 16}", version="0.3.0")
        lone.core.registry.set_state(i, ActorState.ONLINE)
    for name in (*REPORTED, "items", "episodes"):
        table[name][:actors] = random.integers(1, 10**6, actors)


def measure(actors: int, per_actor: bool) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"server": {"max_actors": actors}, "replay": {"capacity": 1000}}
        config, directory = counting_config(Path(folder) / "run", **changes), Path(folder) / "shared"
        parts = build_parts(config, seed=0, epsilon=0.0, n_envs=1)
        lone = LoneCore(directory, config, parts.schema)
        fill(lone, directory, actors)
        lone.core.tick()
        collector = IngestCollector(lone.core)
        collector.tick()
        time.sleep(FIRST_RATE_SECONDS)  # Then there are rates too.
        collector.tick()
        registry = prometheus_client.CollectorRegistry()
        registry.register(collector)
        seconds = []
        for _ in range(REPEATS):
            began = time.thread_time()
            text = prometheus_client.generate_latest(registry)
            seconds.append(time.thread_time() - began)
        lone.close()
        parts.close()
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return f"| {actors} | {per_actor} | {len(text)} | {series} | {1000 * float(np.median(seconds)):.1f} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1024)
    actors = parser.parse_args().actors
    sys.stdout.write("| actors | series of each | bytes | series | median ms |\n|--:|---|--:|--:|--:|\n")
    for per_actor in (True, False):
        with mock.patch.object(run_config, "MAX_ACTORS_SHOWN", actors if per_actor else 0):
            sys.stdout.write(measure(actors, per_actor))


if __name__ == "__main__":
    main()
