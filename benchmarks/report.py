"""How benchmarks start, time commands and print: one table for people, one JSON line for machines."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from common.process.child import KEEP_BUFFERS

RUNS = 3


def run_as_actors_do(name: str) -> None:
    """Start this benchmark again with the memory settings that every child process of a run has, if it lacks them."""
    if not KEEP_BUFFERS.keys() <= os.environ.keys():
        command = [sys.executable, "-m", name, *sys.argv[1:]]
        os.execve(sys.executable, command, {**KEEP_BUFFERS, **os.environ})  # noqa: S606


def add_choice(parser: argparse.ArgumentParser, name: str, known: Iterable[str]) -> None:
    """Add words that choose among the ``known`` ones; without a word all are chosen.

    argparse's own ``choices`` would refuse the default, since it is a list.
    """
    names = list(known)

    def check(word: str) -> str:
        if word not in names:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, found {word!r}")
        return word

    parser.add_argument(name, nargs="*", type=check, default=names, help=", ".join(names))


def median(measure: Callable[[], float]) -> float:
    """The median of ``RUNS`` measurements, after one that does not count."""
    measure()
    return statistics.median(measure() for _ in range(RUNS))


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken so far, all its threads together.

    The number of the clock is that of clock_getcpuclockid(3), which Python does not have.
    """
    return time.clock_gettime((~pid << 3) | 2)


def children_seconds() -> float:
    """Processor time of all children that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_command(words: Sequence[str], **options: Any) -> tuple[float, float, subprocess.CompletedProcess[str]]:
    """Run a command to its end; return its seconds, the processor time of its processes, and what it said.

    ``options`` are those of ``subprocess.run``.
    """
    cpu, began = children_seconds(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    return time.perf_counter() - began, children_seconds() - cpu, done


def wait_until(happened: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait until ``happened()``; end the benchmark if ``what`` is expected to happen has not within these seconds."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            sys.exit(f"expected that {what} within {seconds:.0f} s")
        time.sleep(0.01)


def learner_words(config: Path | str, actors: int, settings: Mapping[str, object], *more: str) -> list[str]:
    """The words of a command that trains with actors on this host, which connect at a free port.

    Args:
        config: the configuration.
        actors: how many.
        settings: replace those of the configuration, and of ``more``.
        more: settings as ``key=value``.
    """
    own = {"server.listen": "127.0.0.1:0", **settings}
    words = [*more, *(f"{key}={value}" for key, value in own.items())]
    command = [sys.executable, "-m", "learner", "--config", str(config), "--local-actors", str(actors)]
    return [*command, *chain.from_iterable(("--set", word) for word in words)]


def report(name: str, guarantees: str, rows: Sequence[Mapping[str, object]], runs: int = RUNS) -> None:
    """Print the table of medians of ``runs`` runs, and one line of JSON."""
    columns = list(rows[0])
    cells = [[f"{row[c]:,.2f}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [columns, *cells]
    ]
    heading = f"{name} ({os.cpu_count()} cores, medians of {runs}, {guarantees})"
    result = {"benchmark": name, "cores": os.cpu_count(), "runs": runs, "guarantees": guarantees, "rows": rows}
    sys.stdout.write("\n".join([heading, *lines, json.dumps(result)]) + "\n")
