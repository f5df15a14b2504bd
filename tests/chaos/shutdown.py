"""SIGTERM in whatever state: soon nothing runs any more, and all that was learnt is on disk."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from learner.replay.memory import ReplayMemory
from learner.storage.training_state import read_newest_state
from tests.chaos.report import scratch, tell
from tests.conftest import Command, counting_values, fork_server, merged, named, signal_each, wait_for
from tests.e2e.test_by_hand import CALM, steps_by_actor, trains
from tests.e2e.test_resume import kept
from tests.parts import CheckingAgent, check_rows

END_SECONDS: Final = 10.0
"""All that an end may take, with a core for each process."""
_MARK: Final = "CROSSBORDER_CHAOS"
"""Every process of a run inherits this variable."""


class HeavyAgent(CheckingAgent):
    """Has 40 MB to keep, so that a checkpoint is nearly always being written."""

    def save_params(self) -> Mapping[str, torch.Tensor]:
        return {**super().save_params(), "ballast": torch.zeros(10_000_000)}


@dataclass(frozen=True)
class State:
    """A run that comes to a state of its own."""

    reached: Callable[[Path, Command], object]
    """Looks, and may do, what makes the state."""
    changes: dict[str, Any] = field(default_factory=dict)
    local_actors: int = 1


def _items_came(run_dir: Path, _: Command) -> bool:
    return any(steps_by_actor(run_dir).values())


def _evaluates(run_dir: Path, _: Command) -> bool:
    return (run_dir.parent / "evaluates").exists()


def _writes(run_dir: Path, _: Command) -> bool:
    return kept(run_dir) > 0 and any((run_dir / "checkpoints").glob(".*.part"))


def _without_ingest(run_dir: Path, server: Command) -> bool:
    return kept(run_dir) > 0 and _signalled(server, "ingest", signal.SIGKILL)


def _without_actor(run_dir: Path, server: Command) -> bool:
    return kept(run_dir) > 0 and _signalled(server, "worker-0", signal.SIGSTOP)


def _signalled(server: Command, name: str, number: int) -> bool:
    pids = named(name, server.process.pid)
    signal_each(pids, number)
    return bool(pids)


STATES: Final[dict[str, State]] = {
    "warm-up": State(_items_came, {"agent": {"params": {"ready_at": 10**9}}}),
    "evaluation": State(
        _evaluates, {"evaluator": {"target": "tests.parts:EndlessEvaluator"}, "trainer": {"eval_interval": 10}}
    ),
    "checkpoint write": State(_writes, {"agent": {"target": "tests.chaos.shutdown:HeavyAgent"}}),
    "ingest restart": State(_without_ingest),
    "starvation": State(lambda run_dir, _: trains(run_dir), local_actors=0),
    "actor frozen": State(_without_actor),
}


def end_from(name: str, directory: Path) -> float:
    """Bring a run into this state and end it; the seconds from SIGTERM to the end of the last process.

    Raises:
        AssertionError: a process is left, or something is not on disk.
    """
    state, run_dir = STATES[name], directory / "run"
    values = merged(merged(counting_values(run_dir), CALM), {"trainer": {"checkpoint_seconds": 0.01}})
    values = merged(values, state.changes)
    if name == "evaluation":
        values["evaluator"]["params"] = {"begun": str(directory / "evaluates")}
    (directory / "shutdown.yaml").write_text(yaml.safe_dump(values))
    fork_server()  # It outlives every run, so it must not begin with the mark of one.
    os.environ[_MARK] = str(directory)
    arguments = ("--config", str(directory / "shutdown.yaml"), "--local-actors", str(state.local_actors))
    server = Command("learner-server", *arguments, log=directory / "server.log")
    try:
        wait_for(lambda: state.reached(run_dir, server), name)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM, server.output()
        seconds = time.monotonic() - began
        assert not _left(directory), f"left running: {_left(directory)}\n{server.output()}"
    finally:
        server.end()  # First: it would start its children again.
        signal_each(_left(directory), signal.SIGKILL)
        del os.environ[_MARK]
    _check_flushed(run_dir)
    return seconds


def _left(directory: Path) -> list[int]:
    """Processes of the run."""
    mark = f"{_MARK}={directory}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if int(path.parent.name) != os.getpid() and mark in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # It has just ended, or is somebody else's.
    return found


def _check_flushed(run_dir: Path) -> None:
    final = json.loads((run_dir / "final" / "meta.json").read_text())
    assert kept(run_dir) == final["opt_steps"], "the last step is the one to go on from"
    assert final["opt_steps"] == 0 or read_newest_state(run_dir / "checkpoints", final["run_id"]) is not None
    assert not list(run_dir.rglob("*.part")), "nothing is half written"
    records = (run_dir / "metrics.csv").read_text()
    assert records.endswith("\n") or not records, "the last row is whole"
    memory = ReplayMemory.open_saved(run_dir / "shared" / "replay")
    assert memory.committed >= final["samples_total"], "actors hand over their last items after it"
    check_rows({name: column[: memory.committed] for name, column in memory.columns.items()})


def shut_down() -> dict[str, Any]:
    """The seconds that an end took from each state.

    Raises:
        AssertionError: it took too long, or see ``end_from``.
    """
    seconds = {}
    for name in STATES:
        with scratch() as directory:
            seconds[name] = end_from(name, directory)
        tell(f"{name}: all ended after {seconds[name]:.1f} s")
    assert max(seconds.values()) <= END_SECONDS, seconds
    return {"end_seconds": seconds}
