"""A learner host that answers questions about its own speed: opt steps and draws, from what actors have pushed to it.

The first line on standard input is the configuration's path. Each further line, ``{"do", "size", "seconds"}`` in JSON,
is answered by a line ``{"rate", "microseconds"}``: calls per second of wall-clock, and processor time of one call.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch


def first_of(*modules: str) -> Any:
    """The first module that this release has; releases have the same things in other places."""
    for name in modules:
        if find_spec(name.partition(".")[0]) and _has(name):
            return importlib.import_module(name)
    raise SystemExit(f"expected one of the modules {modules}, found none")


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def timed(work: Callable[[], object], seconds: float) -> dict[str, float]:
    """The rate and the processor time of calls over so many seconds."""
    began, computed, calls = time.perf_counter(), time.thread_time(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        work()
        calls += 1
    return {"rate": calls / elapsed, "microseconds": (time.thread_time() - computed) / calls * 1e6}


def main() -> None:
    torch.set_num_threads(1)
    load_config = first_of("common.config.run_config", "common.config").load_config
    learner_server = first_of("learner.loop.server", "learner.server").LearnerServer
    with learner_server(load_config(Path(sys.stdin.readline().strip()))) as server:
        questions: dict[str, Callable[[int], object]] = {
            "opt": lambda _: server.learner.step(),
            "draw": server.buffer.batch,
        }
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "inserted":
                answer: dict[str, float] = {"inserted": server.buffer.inserted}
            else:
                work, size = questions[asked["do"]], asked.get("size", 0)
                work(size)  # The first call lets in all that has come.
                answer = timed(lambda work=work, size=size: work(size), asked["seconds"])  # type: ignore[misc]
            sys.stdout.write(f"ANSWER {json.dumps(answer)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
