"""Two ranks learn CartPole, and one is killed again and again: they reach the target and lose nothing."""

from __future__ import annotations

import csv
import random
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from learner.replay.memory import ReplayMemory
from learner.shared.control import ControlBlock
from tests.chaos.audit import CHECKSUM, checksums
from tests.chaos.report import scratch, tell
from tests.chaos.witness import noted
from tests.conftest import ROOT, Command, children_of, free_port, is_alive, kill, merged, wait_for
from tests.e2e.test_by_hand import steps_by_actor

RANKS: Final = 2
ROWS: Final = 16
"""In each batch."""
BACK_SECONDS: Final = 300.0
TRAIN_SECONDS: Final = 3600.0
CHANGES: Final[dict[str, Any]] = {
    "step_processor": {"target": "tests.chaos.audit:Checksummed"},
    "trainer": {"checkpoint_seconds": 1.0},
    "push": {"n_buffer": ROWS, "flush_seconds": 3600.0},
    "replay": {"capacity": 1_000_000},
    "metrics": {"listen": "127.0.0.1:0"},
}


def train_killed(kills: int, seed: int) -> dict[str, Any]:
    """Train with so many kills of a rank, one after another; its figures.

    Raises:
        AssertionError: the target is not reached, or a row that was acknowledged is lost, doubled or torn.
    """
    rng, seconds = random.Random(seed), list[float]()
    with scratch() as directory:
        shards, addresses = _write(directory)
        run = shards[0]
        commands = [_start_ranks(directory, kills)]
        notes = directory / "acknowledged"
        notes.mkdir()
        try:
            for i, address in enumerate(addresses):
                log = directory / f"actor-{i}.log"
                words = (str(notes), "--learner", address)
                commands.append(Command("tests.chaos.witness", *words, log=log, prefix=("env",)))
            ranks, *actors = commands
            start = _wait_for_steps(shards, after=0, more=rng.randrange(100, 600))
            for done in range(1, kills + 1):
                victims = children_of(ranks.process.pid)
                assert len(victims) == RANKS
                before = _acknowledged(notes, actors)
                chosen, began = rng.randrange(RANKS), time.monotonic()
                kill(victims[chosen])
                wait_for(partial(_are_gone, victims), "all ranks end", BACK_SECONDS)
                ended = time.monotonic() - began
                start = _wait_for_steps(shards, after=start, more=1)
                seconds.append(time.monotonic() - began)
                stored = [_open(shard).committed for shard in shards]
                assert all(rows >= told for rows, told in zip(stored, before, strict=True)), (stored, before)
                tell(f"kill {done} of {kills}, seed {seed}: rank {chosen}; ended {ended:.1f} s, on {seconds[-1]:.1f} s")
                if done < kills:
                    _wait_for_steps(shards, after=start - 1, more=rng.randrange(100, 600))
            assert ranks.wait(TRAIN_SECONDS) == 0, f"the target is reached; logs in {directory}"
            assert [actor.wait() for actor in actors] == [0] * RANKS, "every actor hears of the end"
        finally:
            for command in commands:
                command.end()
        found = [_audit(shard, actor.process.pid) for shard, actor in zip(shards, actors, strict=True)]
        with (run / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
    scores = [float(row["eval_reward"]) for row in rows if row["eval_reward"]]
    return {
        "kills": kills,
        "seed": seed,
        "ranks": RANKS,
        "score": max(scores),
        "opt_steps": int(rows[-1]["opt_steps"]),
        "steps_stored": [steps for steps, _ in found],
        "rows_lost_doubled_or_torn": sum(wrong for _, wrong in found),
        "back_after_seconds": [round(each, 1) for each in seconds],
    }


def _write(directory: Path) -> tuple[list[Path], list[str]]:
    """Write the configuration; return the directories of the ranks and where they listen."""
    port, run = free_port(RANKS), directory / "run"
    values = yaml.safe_load((ROOT / "configs" / "cartpole.yaml").read_text())
    changes = {**CHANGES, "run_dir": str(run), "server": {"listen": f"127.0.0.1:{port}"}}
    (directory / "ranks.yaml").write_text(yaml.safe_dump(merged(values, changes)))
    shards = [run, *(run / f"rank-{rank}" for rank in range(1, RANKS))]
    return shards, [f"127.0.0.1:{port + rank}" for rank in range(RANKS)]


def _start_ranks(directory: Path, restarts: int) -> Command:
    words = ("--nproc-per-node", f"{RANKS}", "--max-restarts", f"{restarts}", "-m", "learner")
    config = ("--config", str(directory / "ranks.yaml"), "--resume")
    return Command("torch.distributed.run", *words, *config, log=directory / "ranks.log")


def _wait_for_steps(shards: list[Path], after: int, more: int) -> int:
    """Wait until all ranks have taken ``more`` opt steps in a start after ``after``; return the start's incarnation."""
    incarnations = set[int]()

    def opt_steps() -> int:
        if not all((shard / "endpoints.json").exists() for shard in shards):
            return 0
        found = [ControlBlock.open(shard / "shared", writable=False) for shard in shards]
        incarnations.clear()
        incarnations.update(int(control.incarnation) for control in found)
        has_begun = len(incarnations) == 1 and min(incarnations) > after
        return min(int(control.opt_steps) for control in found) if has_begun else 0

    wait_for(lambda: opt_steps() > 0, "the ranks take opt steps", BACK_SECONDS)
    goal = opt_steps() + more
    wait_for(lambda: opt_steps() >= goal, f"{more} more opt steps", BACK_SECONDS)
    return incarnations.pop()


def _are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def _acknowledged(notes: Path, actors: list[Command]) -> list[int]:
    """Rows that each actor was told are stored."""
    return [ROWS * noted(notes, actor.process.pid).acknowledged for actor in actors]


def _open(shard: Path) -> ReplayMemory:
    return ReplayMemory.open_saved(shard / "shared" / "replay")


def _audit(shard: Path, pid: int) -> tuple[int, int]:
    """The steps of a shard, and how many are too few, too many or torn; its actor has handed over all its steps."""
    memory = _open(shard)
    rows = {name: column[: memory.committed] for name, column in memory.columns.items()}
    torn = int((checksums(rows) != rows[CHECKSUM.name]).sum())
    wrong = abs(memory.steps - steps_by_actor(shard)[pid]) + torn
    assert not wrong, f"{shard}: {memory.steps} steps stored, {steps_by_actor(shard)[pid]} taken, {torn} torn"
    return memory.steps, wrong
