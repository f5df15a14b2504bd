"""Seconds from the command to the first opt step: DQN in CartPole, a warm-up of 64 steps.

    python -m benchmarks.startup --python PYTHON     an interpreter with stable-baselines3 and sbx, in turns with ours

Ours starts three processes: the learner, ingest and one local actor. A peer trains in one process. The floor is a
process that imports torch and Gymnasium and ends. First all modules of both interpreters are compiled. All files are in
the operating system's cache after the first turn, which does not count.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.pairs import ROOT
from benchmarks.report import children_seconds, learner_words, report
from common.agents.dqn import DQN
from common.data import Record
from common.interfaces import ReplayBuffer

log = logging.getLogger(__name__)
WARM_UP: Final = 64
END_SECONDS: Final = 60.0
FIRST: Final = "the first opt step was taken"
MARKS: Final = {"listens": "listening on", "actor joined": "joined run", "first opt step": FIRST}
"""Words of the log that show the progress of crossborder's start."""


class Announcing(DQN):
    """DQN that logs its first opt step."""

    _is_first = True

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        if self._is_first:
            self._is_first = False
            log.info(FIRST)
        return record


def compile_modules(python: str) -> None:
    """Compile the installed modules of an interpreter and ours, so that no start has to.

    A package may have a file that does not compile, such as a template; the others are compiled then too.
    """
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    ours = [str(ROOT / name) for name in ("actor", "benchmarks", "common", "crossborder", "learner")]
    subprocess.run([python, "-m", "compileall", "-qq", "-j0", packages, *ours], check=False)


def start_ours(directory: str) -> dict[str, float]:
    """Seconds until each of the marks, of one run that ends after ten opt steps."""
    settings = {
        "agent.target": "benchmarks.startup:Announcing",
        "trainer.warmup_period": WARM_UP,
        "trainer.max_opts": 10,
        "trainer.eval_interval": 0,
        "trainer.target_score": "null",
        "metrics.listen": "null",
        "run_dir": f"{directory}/run",
    }
    return watch(learner_words("configs/cartpole.yaml", 1, settings), MARKS)


def watch(command: Sequence[str], marks: Mapping[str, str]) -> dict[str, float]:
    """Run a command to its end; return when its output showed each mark last, and the processor time.

    The learner tries a copy of its agent before it listens, so the first opt step is logged twice.

    Raises:
        CalledProcessError: the command failed.
    """
    found, cpu, began = dict.fromkeys(marks, math.nan), children_seconds(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            for name, words in marks.items():
                if words in line:
                    found[name] = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {**found, "end": time.perf_counter() - began, "CPU s": children_seconds() - cpu}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.startup", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", help="an interpreter with stable-baselines3 and sbx")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    peer = [arguments.python, str(Path(__file__).with_name("startup_peer.py")), str(WARM_UP)]
    for python in filter(None, (sys.executable, arguments.python)):
        compile_modules(python)
    turns: dict[str, list[dict[str, float]]] = {}
    for turn in range(arguments.turns + 1):
        with tempfile.TemporaryDirectory() as directory:
            found = {"crossborder": start_ours(directory)}
        found["imports of torch and Gymnasium"] = watch([sys.executable, "-c", "import torch, gymnasium"], {})
        if arguments.python:
            for package in ("stable_baselines3", "sbx"):
                found[package] = watch([*peer, package], {"first opt step": FIRST})
        for name, figures in found.items():
            turns.setdefault(name, []).extend([figures] if turn else [])
    columns = (*MARKS, "end", "CPU s")
    rows = [
        {"who": name, **{c: statistics.median(turn.get(c, math.nan) for turn in taken) for c in columns}}
        for name, taken in turns.items()
    ]
    report("startup", "from the command on, in seconds", rows, arguments.turns)


if __name__ == "__main__":
    main()
