"""Two releases beside each other: a source tree each, whose commands run as users run them.

A tree's own ``learner-server`` and ``actor-worker`` are started with the same configuration, the environment and agent
of which are in ``benchmarks.both``. What the learner has stored is read at its /metrics.
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

PATIENCE: Final = 60.0
SETTLING: Final = 0.5
BOTH: Final = Path(__file__).parent / "both"
NOW: Final = Path(__file__).parents[1]
STORED: Final = re.compile(r"^crossborder_(?:stored_)?(?:steps|items)_total (\S+)$", re.MULTILINE)
"""Steps that were stored: a release that stores items counts these."""


@dataclass(frozen=True)
class Tree:
    """The source tree of one release.

    Args:
        name: in tables.
        path: the tree; the packages that it needs are those of the Python that runs this.
    """

    name: str
    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which Python imports this tree."""
        as_users_have = {name: value for name, value in os.environ.items() if name not in KEEP_BUFFERS}
        return {**as_users_have, "PYTHONPATH": f"{self.path}:{BOTH}"}

    def command(self, name: str, *arguments: str) -> list[str]:
        """The command line of one of the tree's commands."""
        scripts = tomllib.loads((self.path / "pyproject.toml").read_text())["project"]["scripts"]
        module, function = scripts[name].split(":")
        return [sys.executable, "-c", f"import sys, {module}; sys.exit({module}.{function}())", *arguments]

    def run_module(self, module: str, *arguments: str) -> str:
        """What ``python -m module`` prints, in this tree."""
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    @contextmanager
    def process(self, command: list[str], log: IO[str], **pipes: Any) -> Iterator[subprocess.Popen[str]]:
        """A process in this tree, interrupted at the end of the context."""
        with subprocess.Popen(
            command, cwd=self.path, env=self.environment, stderr=log, text=True, **{"stdout": log, **pipes}
        ) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGCONT)  # It may be paused.
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()


def configuration(run_dir: Path, part: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run that stores what comes and does not learn, with the values of ``part``."""
    return {
        "agent": {"target": "recorded:Idle"},
        "trainer": {"max_opts": 1, "eval_interval": None, "checkpoint_seconds": None},
        "server": {"listen": "127.0.0.1:0"},
        "metrics": {"trainer_port": None, "ingest_port": 0},
        "run_dir": str(run_dir),
        **part,
    }


@dataclass(frozen=True)
class Counts:
    """What has been counted up to one moment: steps stored, seconds, and processor seconds of both sides."""

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
    """A learner host and one actor, both of one tree, that has begun to push."""

    def __init__(self, run_dir: Path, learner: int, actor: int) -> None:
        endpoints = json.loads((run_dir / "endpoints.json").read_text())
        self._metrics = f"http://127.0.0.1:{endpoints['ingest_metrics_port']}/metrics"
        self._actor = actor
        self._ingest = child_of(learner, "learner.ingest")

    def counts(self) -> Counts:
        """What has been counted up to now."""
        with urllib.request.urlopen(self._metrics, timeout=PATIENCE) as answer:  # noqa: S310 - of our own host
            text = answer.read().decode()
        return Counts(
            sample(text, STORED),
            sample(text, re.compile(r"^crossborder_batches_total (\S+)$", re.MULTILINE)),
            sample(text, re.compile(r"^crossborder_payload_bytes_total (\S+)$", re.MULTILINE)),
            time.perf_counter(),
            cpu_seconds(self._ingest),
            cpu_seconds(self._actor),
        )

    def measure(self, seconds: float) -> dict[str, float]:
        """The rates over the next seconds, for which a paused actor goes on."""
        os.kill(self._actor, signal.SIGCONT)
        time.sleep(SETTLING)
        before = self.counts()
        time.sleep(seconds)
        return self.counts().since(before)

    def pause(self) -> None:
        """Stop the actor's process where it is, so that something else can be measured."""
        os.kill(self._actor, signal.SIGSTOP)


def sample(text: str, pattern: re.Pattern[str]) -> float:
    """The value of the metric that the pattern finds."""
    found = pattern.search(text)
    if found is None:
        raise SystemExit(f"/metrics: expected a line like {pattern.pattern}, found none")
    return float(found[1])


def child_of(parent: int, module: str) -> int:
    """The process that runs a module as a child of another one."""
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in path.read_text().split():
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise SystemExit(f"expected process {parent} to run {module}, found no such child")


def await_file(path: Path, process: subprocess.Popen[str], log: Path) -> None:
    """Wait until a process has written a file."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"expected {path}, found none; {log} ends with\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


@contextmanager
def learner_host(tree: Tree, part: Mapping[str, Any]) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A learner host of a tree: its run directory and its process."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config, run_dir, log = directory / "run.yaml", directory / "run", directory / "learner.log"
        config.write_text(yaml.safe_dump(configuration(run_dir, part)))
        command = tree.command("learner-server", "--config", str(config))
        process = stack.enter_context(tree.process(command, stack.enter_context(log.open("w"))))
        await_file(run_dir / "endpoints.json", process, log)
        yield run_dir, process


class Desk:
    """A learner host that has stored steps, and answers how fast it learns and draws; see ``benchmarks.both.desk``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks, self._answers = process.stdin, process.stdout

    def ask(self, do: str, **more: object) -> dict[str, float]:
        """The answer to one question."""
        self._asks.write(json.dumps({"do": do, **more}) + "\n")
        self._asks.flush()
        for line in self._answers:
            if line.startswith("ANSWER "):
                found: dict[str, float] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise SystemExit(f"expected an answer to {do}, found that the learner host has ended")


@contextmanager
def desk(tree: Tree, part: Mapping[str, Any], stored: int) -> Iterator[Desk]:
    """A desk of a tree, after an actor has pushed ``stored`` steps to it and has gone."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config, run_dir, log = directory / "run.yaml", directory / "run", directory / "learner.log"
        config.write_text(yaml.safe_dump(configuration(run_dir, part)))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = stack.enter_context(
            tree.process([sys.executable, str(BOTH / "desk.py")], stack.enter_context(log.open("w")), **pipes)
        )
        found = Desk(process)
        assert process.stdin is not None
        process.stdin.write(f"{config}\n")
        process.stdin.flush()
        await_file(run_dir / "endpoints.json", process, log)
        with actor(tree, run_dir) as acts:
            deadline = time.monotonic() + 10 * PATIENCE
            while found.ask("inserted")["inserted"] < stored:
                if acts.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"expected {stored} steps to arrive, found too few; see {run_dir.parent}")
                time.sleep(0.2)
        yield found


@contextmanager
def actor(tree: Tree, run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """One actor of a tree, in a process of its own."""
    address = json.loads((run_dir / "endpoints.json").read_text())["learner"]
    command = tree.command("actor-worker", "--learner", address)
    with (run_dir.parent / "actor.log").open("w") as log, tree.process(command, log) as process:
        yield process


@contextmanager
def acting(tree: Tree, part: Mapping[str, Any]) -> Iterator[Pair]:
    """A learner host of a tree, and one actor that has begun to push to it."""
    with learner_host(tree, part) as (run_dir, learner), actor(tree, run_dir) as acts:
        pair = Pair(run_dir, learner.pid, acts.pid)
        deadline = time.monotonic() + PATIENCE
        while not pair.counts().steps:
            if acts.poll() is not None or time.monotonic() > deadline:
                said = (run_dir.parent / "actor.log").read_text()[-3000:]
                raise SystemExit(f"expected steps to arrive, found none; the actor said\n{said}")
            time.sleep(0.1)
        yield pair
