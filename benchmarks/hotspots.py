"""The functions in which trainer, ingest and an actor spend their time: DQN in CartPole or Pong, running free.

    python -m benchmarks.hotspots --py-spy PROGRAM     https://github.com/benfred/py-spy

py-spy samples the stacks of a process's Python threads. The share of a function is the share of samples in which it was
the innermost of crossborder's own functions on the stack; samples of threads that wait do not count. ``cores`` counts
all threads, those of gRPC in C too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import torch

from benchmarks.actor import KINDS
from benchmarks.report import cpu_seconds, report, run_as_actors_do
from benchmarks.serving import FREE
from common.config.run_config import load_config
from learner.loop.server import LearnerServer

SECONDS: Final = 20
PATIENCE: Final = 60.0
SHOWN: Final = 12
FRAME = re.compile(r"(?P<function>\S+) \((?P<file>(?:actor|common|learner)/\S+)\.py:\d+\)")
"""A frame of crossborder's own code in py-spy's output."""
WAITS = re.compile(r"\S*(wait|select|poll|acquire)\S* \((threading|selectors|subprocess|queue)\.py:\d+\)")
"""The innermost frame of a thread that waits, which py-spy sometimes counts as busy."""
PUSH = ("push.n_buffer=64", "push.window=64", "push.spool_bytes=67108864")


def shares(stacks: str) -> dict[str, float]:
    """The share of each function, the largest first, from py-spy's raw output: ``FRAME;FRAME;… COUNT`` on each line."""
    counts: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if WAITS.fullmatch(frames[-1]):
            continue
        ours = [found for frame in frames if (found := FRAME.fullmatch(frame))]
        counts[f"{ours[-1]['file']}: {ours[-1]['function']}" if ours else "libraries"] += int(count)
    return {name: count / counts.total() for name, count in counts.most_common()}


class Watched:
    """A process that py-spy samples from the construction of this object on; ``shares`` waits for the end."""

    def __init__(self, program: str, pid: int, output: Path) -> None:
        self._pid, self._output = pid, output
        self._began, self._cpu = time.monotonic(), cpu_seconds(pid)
        options = ["--pid", str(pid), "--duration", str(SECONDS), "--format", "raw", "--function", "--nonblocking"]
        self._spy = subprocess.Popen([program, "record", *options, "--output", output], stdout=subprocess.DEVNULL)

    def shares(self) -> tuple[float, dict[str, float]]:
        """The cores that the process kept busy, and the share of each function; waits until py-spy has finished."""
        if self._spy.wait(SECONDS + PATIENCE):
            raise RuntimeError(f"py-spy could not read process {self._pid}; on Linux it has to run as root")
        cores = (cpu_seconds(self._pid) - self._cpu) / (time.monotonic() - self._began)
        return cores, shares(self._output.read_text())


def watch(program: str, server: LearnerServer, directory: Path) -> list[dict[str, object]]:
    """The largest shares of each process, once opt steps are under way."""
    deadline = time.monotonic() + PATIENCE
    while server.learner.opt_steps < 100:
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected an opt step within {PATIENCE:g} s, found none")
        time.sleep(0.1)
    assert server.local_actors is not None
    actor, ingest = server.local_actors.pids[0], server.ingest.pid
    pids = {"trainer": os.getpid(), "ingest": ingest, "actor": actor}
    watched = {name: Watched(program, pid, directory / name) for name, pid in pids.items()}
    rows: list[dict[str, object]] = []
    for name, process in watched.items():
        cores, found = process.shares()
        top = list(found.items())[:SHOWN]
        rows += [{"process": name, "cores": cores, "function": function, "share": share} for function, share in top]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.hotspots", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="cartpole")
    parser.add_argument("--py-spy", required=True, help="where py-spy is")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        run = f"run_dir={directory}/run", "replay.samples_per_insert=null", "trainer.target_score=null"
        config = load_config(Path("configs/cartpole.yaml"), [*FREE, *KINDS[arguments.kind], *PUSH, *run])
        with LearnerServer(config, local_actors=1) as server:
            rows: list[dict[str, object]] = []

            def look() -> None:
                try:
                    rows.extend(watch(arguments.py_spy, server, Path(directory)))
                finally:
                    server.learner.request_stop()

            looking = threading.Thread(target=look)
            looking.start()
            server.train()
            looking.join()
    if not rows:
        sys.exit(1)
    report(f"hotspots {arguments.kind}", "py-spy, 100 samples a second", rows)


if __name__ == "__main__":
    run_as_actors_do("benchmarks.hotspots")
    main()
