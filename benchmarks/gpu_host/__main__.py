"""One trial of a host with a GPU and many cores: learning, acting and rates, measured there in a few minutes.

    python -m benchmarks.gpu_host --minutes 9 --out trial.jsonl          all parts, the most telling first
    python -m benchmarks.gpu_host pong rates --minutes 5                 two of them
    python -m benchmarks.gpu_host --share 64 --device cpu --minutes 1    a rehearsal without a GPU

Each part is a process with a share of the minutes, and what a part leaves goes to those after it. A part's results are
lines of JSON, written to ``--out`` as they come, with the host's card, driver, torch and processor; all else that a
part prints is shown as progress. A part that has not ended in time is stopped, and what it found until then counts.
The exit code is 1 if a part broke. ``python -m benchmarks.gpu_host.wheels`` collects what a host without a network
lacks, and ``python -m benchmarks.gpu_host.page`` writes tables from the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_host.host import describe_host
from benchmarks.report import add_choice

GRACE_SECONDS: Final = 15.0
"""A part that has not ended in time has this long to end in order."""


@dataclass(frozen=True)
class Part:
    """A part of the trial.

    Args:
        minutes: its share of nine.
        words: the module of the part and its own arguments.
    """

    minutes: float
    words: tuple[str, ...]


PARTS: Final = {
    "tests": Part(0.8, ("benchmarks.gpu_host.cuda_tests",)),
    "nccl": Part(0.3, ("benchmarks.gpu_host.nccl",)),
    "pong": Part(3.2, ("benchmarks.gpu_host.solving", "pong")),
    "physics": Part(0.6, ("benchmarks.gpu_host.physics",)),
    "humanoid": Part(1.7, ("benchmarks.gpu_host.solving", "humanoid")),
    "rates": Part(2.4, ("benchmarks.gpu_host.rates",)),
}


def run_part(
    words: tuple[str, ...], seconds: float, on_line: Callable[[str], None], grace: float = GRACE_SECONDS
) -> str:
    """Run a part, and give each line that it prints to ``on_line``, in another thread; return how it ended.

    Args:
        words: after ``python -m``.
        seconds: the part is stopped after them.
        on_line: called for each line.
        grace: seconds from the order to stop until the part and all its children are killed.
    """
    command = [sys.executable, "-u", "-m", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            for line in lines:
                on_line(line.rstrip("\n"))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            code = process.wait(seconds)
            ended = "complete" if code == 0 else f"broken: exit code {code}"
        except subprocess.TimeoutExpired:
            ended = "out of time"
            process.terminate()
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                ended = "out of time, and killed"
        finally:
            _kill_group(process.pid)  # Children too: they would hold the pipe, and the cores of the next part.
            reader.join()
    return ended


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Report:
    """Writes results to a file as they come, and shows progress."""

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self._path, self._facts = path, facts

    def write(self, part: str, found: Mapping[str, Any]) -> None:
        """Append one result."""
        line = json.dumps({"part": part, **self._facts, **found})
        with self._path.open("a") as file:
            file.write(f"{line}\n")
        self.show(part, json.dumps(found))

    def take(self, part: str, line: str) -> None:
        """A line that a part printed: a result, if it is an object of JSON, or else progress."""
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                self.show(part, line)
            else:
                self.write(part, found)
        else:
            self.show(part, line)

    def show(self, part: str, text: str) -> None:
        """Show a line of progress."""
        sys.stdout.write(f"[{time.strftime('%H:%M:%S')} {part}] {text}\n")
        sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.gpu_host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_choice(parser, "part", PARTS)
    parser.add_argument("--minutes", type=float, default=9.0, help="of the whole trial")
    parser.add_argument("--out", type=Path, default=Path("gpu_host.jsonl"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", type=int, default=1, help="64 runs each part at a 64th of its size")
    given = parser.parse_args()
    report = Report(given.out, {**describe_host(), "device": given.device, "share": given.share})
    end, broken = time.monotonic() + 60 * given.minutes, False
    for k, name in enumerate(given.part):
        waiting = sum(PARTS[other].minutes for other in given.part[k:])
        seconds = max(0.0, end - time.monotonic() - GRACE_SECONDS) * PARTS[name].minutes / waiting
        options = ("--seconds", f"{seconds:.0f}", "--device", given.device, "--share", str(given.share))
        report.show(name, f"begins, {seconds:.0f} s")
        began = time.monotonic()
        # The part's own deadline comes first, so that it can say what it found.
        ended = run_part((*PARTS[name].words, *options), seconds + GRACE_SECONDS, partial(report.take, name))
        report.write(name, {"ended": ended, "seconds": round(time.monotonic() - began, 1)})
        broken |= ended.startswith("broken")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
