"""Two ranks, which torchrun or a test starts, train one agent; a killed rank costs nothing acknowledged."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from learner.ranks.place import SEEDS_APART
from learner.shared.rank_table import RankTable
from tests.conftest import Command, children_of, counting_values, free_port, is_alive, kill, merged, wait_for
from tests.e2e.test_by_hand import ENDLESS, steps_by_actor
from tests.e2e.test_counting import CAPACITY
from tests.e2e.test_resume import kept
from tests.parts import PACED
from tests.stored import assert_stored

TORCHRUN = "torch.distributed.run"


def write_ranks_config(directory: Path, **trainer: Any) -> tuple[Path, list[str]]:
    """A counting run, and the addresses of two ranks on this host."""
    port = free_port(2)
    changes = {
        "trainer": {**ENDLESS, "checkpoint_seconds": 0.1, **trainer},
        "replay": {"capacity": CAPACITY, "samples_per_insert": 1.6},
        "env": PACED,
        "push": {"n_buffer": 10, "spool_bytes": 50_000},
        "server": {"listen": f"127.0.0.1:{port}"},
    }
    path = directory / "ranks.yaml"
    path.write_text(yaml.safe_dump(merged(counting_values(directory / "run"), changes)))
    return path, [f"127.0.0.1:{port + rank}" for rank in range(2)]


@pytest.mark.own_children
def test_a_rank_is_killed_and_all_go_on_with_every_acknowledged_row_there_once(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    config, addresses = write_ranks_config(tmp_path)
    words = ("--config", str(config), "--resume")
    ranks = start(TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "-m", "learner", *words)
    shards = [tmp_path / "run", tmp_path / "run" / "rank-1"]
    actors = [start("actor-worker", "--learner", address) for address in addresses]
    wait_for(lambda: min(kept(shard) for shard in shards) > 20, "both ranks take opt steps and keep checkpoints")
    counts = [RankTable.open(shard / "shared").actors for shard in shards]
    wait_for(lambda: [each.sum() for each in counts] == [2, 2], "each ingest is told how many actors each rank has")

    first = children_of(ranks.process.pid)
    assert len(first) == 2
    kill(first[1])
    wait_for(lambda: not any(map(is_alive, first)), "the other rank ends too")
    at = max(map(kept, shards))
    wait_for(lambda: min(map(kept, shards)) > at + 20, "all ranks go on, and keep checkpoints")
    assert "rank 0 of 2: another rank has ended" in ranks.output()

    os.kill(children_of(ranks.process.pid)[1], signal.SIGTERM)
    assert ranks.wait() == 0, "one rank was told to end: all end in order, which torchrun takes for no failure"
    assert [actor.wait() for actor in actors] == [0, 0], "every actor hears of the end, and none was started again"
    assert "Traceback" not in "".join(actor.output() for actor in actors)
    assert kept(shards[0]) == kept(shards[1]) > at, "both took the same opt steps"
    for rank, (shard, actor) in enumerate(zip(shards, actors, strict=True)):
        assert_stored(shard, {rank * SEEDS_APART: steps_by_actor(shard)[actor.process.pid]})
    runs = [json.loads((shard / "run.json").read_text()) for shard in shards]
    assert runs[0] == runs[1], "the same start of the same run"
    assert runs[0]["n_ranks"] == 2
    assert runs[0]["incarnation"] > 1
    assert (shards[0] / "final").exists()
    assert (shards[0] / "metrics.csv").exists()
    of_rank_1 = {path.name for path in shards[1].iterdir()}
    assert not {"final", "best", "metrics.csv"} & of_rank_1, "rank 0 alone saves and records"


def test_a_signal_while_the_ranks_start_ends_all_in_order(start: Callable[..., Command], tmp_path: Path) -> None:
    config, _ = write_ranks_config(tmp_path)
    ranks = start(TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "-m", "learner", "--config", str(config))
    wait_for(lambda: ranks.output().count("gradients by gloo") == 2, "the ranks find each other")
    os.kill(children_of(ranks.process.pid)[1], signal.SIGTERM)
    assert ranks.wait() == 0, "torchrun takes it for no failure"
    shards = [tmp_path / "run", tmp_path / "run" / "rank-1"]
    assert [json.loads((shard / "run.json").read_text())["incarnation"] for shard in shards] == [1, 1]
    assert (shards[0] / "final").exists()


def test_ranks_whose_torchrun_is_killed_end_in_order_and_go_on_with_the_next(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    config, addresses = write_ranks_config(tmp_path)
    words = (TORCHRUN, "--nproc-per-node", "2", "-m", "learner", "--config", str(config), "--resume")
    shards = [tmp_path / "run", tmp_path / "run" / "rank-1"]
    ranks, actors = start(*words), [start("actor-worker", "--learner", address) for address in addresses]
    wait_for(lambda: min(map(kept, shards)) > 20, "both ranks take opt steps and keep checkpoints")

    processes = children_of(ranks.process.pid)
    kill(ranks.process.pid)
    wait_for(lambda: not any(map(is_alive, processes)), "the ranks end too")
    assert f"torchrun (process {ranks.process.pid}) has ended before its ranks" in ranks.output()
    assert [actor.wait() for actor in actors] == [0, 0], "every actor hears of the end"
    assert kept(shards[0]) == kept(shards[1]), "both took the same opt steps"
    assert (shards[0] / "final").exists()

    at, ranks = kept(shards[0]), start(*words)
    actors = [start("actor-worker", "--learner", address) for address in addresses]
    wait_for(lambda: min(map(kept, shards)) > at + 20, "the next start goes on, and draws new rows")
    ranks.signal(signal.SIGTERM)
    ranks.wait()
    assert [actor.wait() for actor in actors] == [0, 0]


def test_the_last_policy_is_scored_where_no_evaluation_was_due(
    start: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, addresses = write_ranks_config(tmp_path, max_opts=30, eval_interval=20)
    words = ("--config", str(config), "--set", "evaluator.max_steps=20")
    torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    commands = [start("actor-worker", "--learner", address) for address in addresses]
    for rank in range(2):
        for name, value in {**torchrun, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}.items():
            monkeypatch.setitem(os.environ, name, value)
        commands.append(start("learner", *words))
    assert [command.wait() for command in commands] == [0, 0, 0, 0], "".join(map(Command.output, commands))
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        scored = [int(row["opt_steps"]) for row in csv.DictReader(file) if row["eval_reward"]]
    assert scored == [20, 30]
