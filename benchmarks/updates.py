"""Gradient steps per second of four agents on one core, beside sbx, stable-baselines3 and CleanRL, in turns.

    taskset -c 1 python -m benchmarks.updates --python PYTHON     an interpreter with stable-baselines3 and sbx

All learn with networks of 2x256 from 20,000 random rows: DQN with 4 observations, 2 actions and batches of 64, without
double Q and clipping (stable-baselines3 clips); SAC with 17 observations, 6 actions and batches of 256. CrossQ and TQC
learn from the same batches as SAC; CrossQ has critics of 2x512. stable-baselines3 has neither of the two. Ours is the
learner's own step with its replay in shared memory; theirs is ``train`` of the installed package, and of CleanRL's
``dqn.py`` the network and the lines of its update, plain and compiled (``benchmarks.cleanrl``). ``burst`` is the number
of updates in one call (``n_updates_per_opt``, ``gradient_steps``): sbx compiles them into one. The turns of a row
follow each other; figures are medians of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from benchmarks.client import Client
from benchmarks.report import report
from benchmarks.serving import serve_learner
from benchmarks.updates_peer import BATCHES, ENVS, ROWS
from common.data import Items, Schema
from learner.loop.server import LearnerServer, local_trust

TURNS = 5
BURST = 64
PART = 250
Turn = Callable[[float], dict[str, float]]
"""Updates for a number of seconds; returns ``updates`` a second and ``cpu``, seconds of processor time for each."""
AGENTS = {
    "DQN": "{target: common.agents.dqn:DQN, params: {units: [256, 256], batch_size: 64, double_dqn: false, "
    "max_grad_norm: null, n_updates_per_opt: %d}}",
    "SAC": "{target: common.agents.sac:SAC, params: {units: [256, 256], batch_size: 256, n_updates_per_opt: %d}}",
    "CrossQ": "{target: common.agents.sac:SAC, params: {units: [256, 256], critic_units: [512, 512], lr: 0.001, "
    "optimizer: {betas: [0.5, 0.999]}, normalization: batch, targets: false, policy_delay: 3, batch_size: 256, "
    "n_updates_per_opt: %d}}",
    "TQC": "{target: common.agents.sac:SAC, params: {units: [256, 256], critic: {kind: quantile}, batch_size: 256, "
    "n_updates_per_opt: %d}}",
}
CLEANRL = ["CleanRL", "CleanRL, compiled"]
PEERS = {
    "DQN": ["sbx", "stable_baselines3"],
    "SAC": ["sbx", "stable_baselines3"],
    "CrossQ": ["sbx"],
    "TQC": ["sbx"],
}


def make_rows(schema: Schema, kind: str) -> Items:
    """Random rows of one lane, in episodes of twenty steps on average."""
    rng, items = np.random.default_rng(0), {}
    for column in schema.columns:
        shape = (ROWS, *column.shape)
        if column.name == "terminated":
            items[column.name] = np.append(rng.random(ROWS - 2) < 0.05, [False, False])
        elif np.dtype(column.dtype).kind == "f":
            items[column.name] = rng.uniform(-1, 1, shape).astype(column.dtype)
        else:
            n = ENVS[kind]["actions"] if column.name == "action" else 1
            items[column.name] = rng.integers(n, size=shape).astype(column.dtype)
    ends = items["terminated"]
    ends[1:] &= ~ends[:-1]  # The row after the last step of an episode is a final row.
    flags = {"truncated": np.zeros(ROWS, np.bool_), "final": np.roll(ends, 1), "first": np.roll(ends, 2)}
    return {**items, **flags, "lane": np.zeros(ROWS, np.uint16)}


@contextmanager
def ours(kind: str, burst: int, *more: str) -> Iterator[Turn]:
    """Our learner with a full replay."""
    env = json.dumps({"target": "benchmarks.updates_peer:RandomEnv", "params": ENVS[kind]})
    alone = (f"replay.capacity={ROWS}", "trainer.eval_interval=1000000000")
    settings = (f"env={env}", f"agent={AGENTS[kind] % burst}", *alone, *more)
    with serve_learner("cartpole", *settings) as server:
        with Client(server.ingest.address, local_trust(server.config.server)) as client:
            rows = make_rows(client.schema, kind)
            for begin in range(0, ROWS, PART):
                client.push({name: column[begin : begin + PART] for name, column in rows.items()})
        server.learner.start()
        yield lambda seconds: take_turn(server, burst, seconds)


def take_turn(server: LearnerServer, burst: int, seconds: float) -> dict[str, float]:
    """Opt steps of our learner for a number of seconds."""
    began, computed, calls = time.perf_counter(), time.process_time(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        server.learner.step()
        calls += 1
    return {"updates": calls * burst / elapsed, "cpu": (time.process_time() - computed) / calls / burst}


@contextmanager
def theirs(python: str, system: str, kind: str, burst: int, batch: int | None = None) -> Iterator[Turn]:
    """A peer in a separate process, which waits while it is not its turn; ``batch`` None: batches as in ``BATCHES``."""
    job = json.dumps({"system": system, "kind": kind, "burst": burst, "batch": batch or BATCHES[kind]})
    command = [python, "-m", "benchmarks.updates_peer", job]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout
        if lines.readline() != "ready\n":
            raise SystemExit(f"{system}: expected the line ready")

        def turn(seconds: float) -> dict[str, float]:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            answer: dict[str, float] = json.loads(lines.readline())
            return answer

        yield turn
        process.stdin.close()


def measure(kind: str, burst: int, python: str | None, seconds: float, more: list[str]) -> list[dict[str, object]]:
    """All systems in turns."""
    with ExitStack() as stack:
        contenders: dict[str, Turn] = {"crossborder": stack.enter_context(ours(kind, burst, *more))}
        if python is not None:
            names = [*PEERS[kind], *(CLEANRL if (kind, burst) == ("DQN", 1) else [])]
            contenders |= {name: stack.enter_context(theirs(python, name, kind, burst)) for name in names}
        turns: dict[str, list[dict[str, float]]] = {name: [turn(seconds)] for name, turn in contenders.items()}
        for _ in range(TURNS):
            for name, turn in contenders.items():
                turns[name].append(turn(seconds))
    medians = {
        name: {key: statistics.median(turn[key] for turn in kept[1:]) for key in kept[0]}
        for name, kept in turns.items()
    }
    base = medians["crossborder"]
    return [
        {
            "updates of": f"{kind}, batch {BATCHES[kind]}",
            "burst": burst,
            "by": name,
            "updates/s": found["updates"],
            "CPU µs/update": found["cpu"] * 1e6,
            "ours to it, wall": base["updates"] / found["updates"],
            "CPU": found["cpu"] / base["cpu"],
        }
        for name, found in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.updates", description=__doc__)
    parser.add_argument("--python", help="an interpreter with stable-baselines3 and sbx")
    parser.add_argument("--kind", choices=AGENTS, nargs="+", default=list(AGENTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("more", nargs="*", help="further settings of crossborder, KEY=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in arguments.kind:
        for burst in (BURST, 1):
            rows += measure(kind, burst, arguments.python, arguments.seconds, arguments.more)
    report("updates", "one core, the same networks and batch sizes, random rows", rows, TURNS)


if __name__ == "__main__":
    main()
