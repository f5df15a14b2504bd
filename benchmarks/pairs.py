"""A learner host and an actor, started by their commands as users start them; /metrics says how much is stored.

The agent of the configuration is ``benchmarks.idle``; push settings are the defaults.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import yaml

from benchmarks.report import cpu_seconds
from common.process.child import KEEP_BUFFERS
from tests.conftest import named

PATIENCE: Final = 60.0
SETTLING: Final = 0.5
ROOT: Final = Path(__file__).parents[1]
_USUAL: Final = {name: value for name, value in os.environ.items() if name not in KEEP_BUFFERS}
ENVIRONMENT: Final = {**_USUAL, "PYTHONPATH": str(ROOT)}
"""Environment variables of a process that a user starts, with which it finds ``benchmarks``."""


def command(name: str, *arguments: str) -> list[str]:
    """The command line of one of the commands."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts[name].split(":")
    return [sys.executable, "-c", f"import sys, {module}; sys.exit({module}.{function}())", *arguments]


@contextmanager
def process(line: list[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is interrupted at the end of the context."""
    with subprocess.Popen(line, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, text=True) as started:
        try:
            yield started
        finally:
            interrupt(started)


def interrupt(started: subprocess.Popen[str]) -> None:
    """Interrupt a process, which may be paused, and wait until it has ended."""
    started.send_signal(signal.SIGCONT)
    started.send_signal(signal.SIGINT)
    try:
        started.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        started.kill()


def configuration(run_dir: Path, part: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that stores all rows and does not learn, with the values of ``part``."""
    return {
        "agent": {"target": "benchmarks.idle:Idle"},
        "trainer": {"max_opts": 1, "eval_interval": None, "checkpoint_seconds": None},
        "server": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": "127.0.0.1:0"},
        "run_dir": str(run_dir),
        **part,
    }


@dataclass(frozen=True)
class Counts:
    """The counts up to one moment: steps stored, seconds, and processor seconds of both sides."""

    steps: float
    batches: float
    payload_bytes: float
    seconds: float
    ingest_seconds: float
    actor_seconds: float

    def since(self, before: Counts) -> dict[str, float]:
        """Rates since an earlier moment."""
        steps, seconds = self.steps - before.steps, self.seconds - before.seconds
        batches = self.batches - before.batches
        payload_bytes = self.payload_bytes - before.payload_bytes
        return {
            "steps/s": steps / seconds,
            "bytes/step": payload_bytes / steps,
            "bytes/message": payload_bytes / batches,
            "actor CPU s/M": (self.actor_seconds - before.actor_seconds) / steps * 1e6,
            "ingest CPU s/M": (self.ingest_seconds - before.ingest_seconds) / steps * 1e6,
        }


class Pair:
    """A learner host and one actor that has begun to push."""

    def __init__(self, run_dir: Path, learner: int, acts: subprocess.Popen[str]) -> None:
        endpoints = json.loads((run_dir / "endpoints.json").read_text())
        self._metrics: int = endpoints["ingest_metrics_port"]
        self.run_dir, self.learner = run_dir, learner
        self._actor, self._log = acts, run_dir.parent / "actor.log"
        (self._ingest,) = named("ingest", learner)

    def stored(self) -> float:
        """The steps that the learner has stored."""
        return sample(read_metrics(self._metrics), "crossborder_stored_steps_total")

    def counts(self) -> Counts:
        """The counts up to now."""
        text = read_metrics(self._metrics)
        return Counts(
            sample(text, "crossborder_stored_steps_total"),
            sample(text, "crossborder_batches_total"),
            sample(text, "crossborder_payload_bytes_total"),
            time.perf_counter(),
            cpu_seconds(self._ingest),
            cpu_seconds(self._actor.pid),
        )

    def measure(self, seconds: float) -> dict[str, float]:
        """The rates over the next seconds, for which a paused actor goes on."""
        self._actor.send_signal(signal.SIGCONT)
        time.sleep(SETTLING)
        before = self.counts()
        time.sleep(seconds)
        return self.counts().since(before)

    def pause(self) -> None:
        """Stop the actor's process where it is, so that another measurement has the processor."""
        self._actor.send_signal(signal.SIGSTOP)

    def compare(self) -> float:
        """End the actor, check that the learner has stored each of its steps, and return their number."""
        interrupt(self._actor)
        took, stored = steps_taken(self._log), self.stored()
        if took != stored:
            raise SystemExit(f"expected the learner to have stored the {took} steps of the actor, found {stored:.0f}")
        return stored


def steps_taken(log: Path) -> int:
    """The steps that an actor took, as it says when it ends."""
    found = re.findall(r"took (\d+) steps", log.read_text())
    if not found:
        raise SystemExit(f"{log}: expected the actor to say how many steps it took, found none")
    return int(found[-1])


def read_metrics(port: int) -> str:
    """The metrics at a port of this host."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text


def sample(text: str, name: str) -> float:
    """The value of a metric."""
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"/metrics: expected {name}, found none")
    return float(found[1])


def child_of(parent: int, module: str) -> int:
    """The process that runs a module as a child of another one."""
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in path.read_text().split():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise SystemExit(f"expected process {parent} to run {module}, found no such child")


def await_file(path: Path, started: subprocess.Popen[str], log: Path) -> None:
    """Wait until a process has written a file."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if started.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"expected {path}, found none; {log} ends with\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


@contextmanager
def learner_host(part: Mapping[str, Any], where: str | None = None) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A learner host: its run directory, which is made in ``where`` or in TMPDIR, and its process."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=where)))
        config, run_dir, log = directory / "run.yaml", directory / "run", directory / "learner.log"
        config.write_text(yaml.safe_dump(configuration(run_dir, part)))
        line = command("learner-server", "--config", str(config))
        learner = stack.enter_context(process(line, stack.enter_context(log.open("w"))))
        await_file(run_dir / "endpoints.json", learner, log)
        yield run_dir, learner


@contextmanager
def actor(run_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """One actor, in a separate process."""
    address = json.loads((run_dir / "endpoints.json").read_text())["learner"]
    line = command("actor-worker", "--learner", address, *options)
    with (run_dir.parent / "actor.log").open("w") as log, process(line, log) as started:
        yield started


@contextmanager
def acting(part: Mapping[str, Any], *options: str, where: str | None = None) -> Iterator[Pair]:
    """A learner host, and one actor with these options that has begun to push to it."""
    with learner_host(part, where) as (run_dir, learner), actor(run_dir, *options) as acts:
        pair = Pair(run_dir, learner.pid, acts)
        deadline = time.monotonic() + PATIENCE
        while not pair.counts().steps:
            if acts.poll() is not None or time.monotonic() > deadline:
                said = (run_dir.parent / "actor.log").read_text()[-3000:]
                raise SystemExit(f"expected steps to arrive, found none; the actor said\n{said}")
            time.sleep(0.1)
        yield pair
