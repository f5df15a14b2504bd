"""The learner host dies, the actors live; ``--resume`` and all goes on, with every acknowledged row there once."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from common.errors import DivergedError
from learner.shared.actor_table import map_actor_table
from tests.conftest import (
    Command,
    descendants_of,
    endpoints,
    free_port,
    is_alive,
    kill,
    kill_whole,
    merged,
    signal_each,
    wait_for,
    with_descendants,
)
from tests.e2e.test_by_hand import CALM, ENDLESS, grows, steps_by_actor
from tests.e2e.test_counting import CAPACITY
from tests.forked_children import forked_children
from tests.learner.scrapes import scrape
from tests.parts import check_rows
from tests.stored import assert_stored, stored_rows


def resumed_at(server: Command) -> int:
    """The opt step at which a server goes on, once it says so."""
    wait_for(lambda: "resumed at opt step" in server.output(), "the run goes on")
    found = re.search(r"resumed at opt step (\d+) ", server.output())
    assert found, server.output()
    return int(found[1])


def kept(run_dir: Path) -> int:
    """The newest opt step to resume from; 0 if there is none."""
    return max((int(path.name) for path in (run_dir / "checkpoints").glob("[0-9]*")), default=0)


def none_is_alive(pids: Collection[int]) -> bool:
    return not any(map(is_alive, pids))


@pytest.mark.own_children
def test_killed_twice_and_resumed_nothing_acknowledged_is_lost_or_doubled_and_the_actors_never_restart(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir, address = tmp_path / "run", f"127.0.0.1:{free_port()}"
    trainer = {**ENDLESS, "checkpoint_seconds": 0.1, "record_interval": 10}
    ratio = {"capacity": CAPACITY, "samples_per_insert": 1.6}
    config = write_config(trainer=trainer, replay=ratio, push={"n_buffer": 10, "spool_bytes": 50_000})
    server = start("learner-server", "--config", str(config), "--listen", address)
    actors = [start("actor-worker", "--learner", address) for _ in range(2)]
    pids = {actor.process.pid for actor in actors}
    steps = [0]
    for whole_tree in (False, True):
        grows(run_dir, pids)
        wait_for(lambda: kept(run_dir) > steps[-1] + 20, "a checkpoint further on")
        children = descendants_of(server.process.pid)
        (kill_whole if whole_tree else kill)(server.process.pid)
        server.wait()
        server = start("learner-server", "--resume", str(run_dir))
        steps.append(resumed_at(server))
        wait_for(partial(none_is_alive, children), "the end of the ingest before")
        grows(run_dir, pids)
    wait_for(lambda: kept(run_dir) > steps[-1], "it goes on keeping states")
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert [actor.wait() for actor in actors] == [0, 0], actors[0].output() + actors[1].output()

    table = map_actor_table(run_dir / "shared", create=False)
    known = table[table["pid"] > 0]
    assert set(known["pid"].tolist()) == pids, "nobody had to be started again"
    assert_stored(run_dir, {tag: int(row["env_steps"]) for tag, row in enumerate(known)})
    assert steps == sorted(set(steps)), "opt steps go on from the checkpoint"
    with (run_dir / "metrics.csv").open(newline="") as file:
        axis = [int(row["opt_steps"]) for row in csv.DictReader(file)]
    assert axis == list(range(10, axis[-1] + 1, 10)), "no row is missing and none is there twice"
    assert json.loads((run_dir / "run.json").read_text())["incarnation"] > 1
    assert kept(run_dir) == json.loads((run_dir / "final" / "meta.json").read_text())["opt_steps"]


def test_a_run_that_diverges_ends_without_saving_that_and_goes_on_from_the_checkpoint_before(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir, ill = tmp_path / "run", tmp_path / "ill"
    agent = {"target": "tests.parts:DivergingAgent", "params": {"ill": str(ill)}}
    changes = {"agent": agent, "trainer": {"checkpoint_seconds": 0.1, "record_interval": 10}}
    server = start(
        "learner-server",
        "--config",
        str(write_config(**merged(CALM, changes))),
        "--local-actors",
        "1",
    )
    wait_for(lambda: kept(run_dir) > 0, "a checkpoint")
    ill.touch()
    assert server.wait() == DivergedError.exit_code, server.output()
    assert re.search(r"opt step \d+: expected finite values, found loss nan; --resume goes on", server.output())
    assert "Traceback" not in server.output()
    assert not (run_dir / "final").exists()
    ill.unlink()
    last = kept(run_dir)
    again = start("learner-server", "--resume", str(run_dir), "--local-actors", "1")
    wait_for(lambda: kept(run_dir) > last, "a checkpoint further on")
    assert resumed_at(again) == last
    assert scrape(endpoints(run_dir)["trainer_metrics_port"])["divergences_total"] == 1


def with_three_actors(
    start: Callable[..., Command], write_config: Callable[..., Path], run_dir: Path
) -> tuple[Command, list[Command]]:
    """A learner with a checkpoint, and two commands whose three actors have all stored rows."""
    address = f"127.0.0.1:{free_port()}"
    changes = {"trainer": {"checkpoint_seconds": 0.1}, "push": {"n_buffer": 10, "spool_bytes": 50_000}}
    config = write_config(**merged(CALM, changes))
    server = start("learner-server", "--config", str(config), "--listen", address)
    with forked_children():
        actors = [start("actor-worker", "--learner", address, "--num-actors", n) for n in ("1", "2")]
    wait_for(lambda: len(steps_by_actor(run_dir)) == 3, "three actors")
    grows(run_dir, {*steps_by_actor(run_dir)})
    wait_for(lambda: kept(run_dir) > 0, "a checkpoint")
    return server, actors


@pytest.mark.own_children
def test_a_restored_older_copy_costs_what_came_after_it_and_no_actor(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    server, actors = with_three_actors(start, write_config, run_dir)
    stop_and_copy(server, run_dir / "shared", tmp_path / "older")
    before, pids = stored_by_actor(run_dir), {*steps_by_actor(run_dir)}
    more_than_a_window = 100  # So that the learner has acknowledged some of them.
    wait_for(
        lambda: all(stored_by_actor(run_dir)[pid] > n + more_than_a_window for pid, n in before.items()), "later rows"
    )
    killed = kill_whole(server.process.pid)
    server.wait()
    wait_for(partial(none_is_alive, killed), "the end of all that hold the run")
    shutil.rmtree(run_dir / "shared")
    (tmp_path / "older").rename(run_dir / "shared")
    server = start("learner-server", "--resume", str(run_dir))

    def warnings() -> list[str]:
        return [line for actor in actors for line in actor.output().splitlines() if "the others are gone" in line]

    wait_for(lambda: len(warnings()) == 3, "each actor says that acknowledged rows are gone")
    grows(run_dir, pids)
    assert all(actor.process.poll() is None for actor in actors)
    assert len(warnings()) == 3
    assert all(" WARNING " in line for line in warnings())
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert [actor.wait() for actor in actors] == [0, 0], actors[0].output() + actors[1].output()
    table = map_actor_table(run_dir / "shared", create=False)
    assert table["actor_id"][table["pid"] > 0].tolist() == [0, 1, 2], "each went on in its own place"
    rows = stored_rows(run_dir)
    check_rows(rows)
    for tag in range(3):
        steps = rows["obs"][rows["obs"][:, 0] == tag, 1]
        assert (np.diff(steps) > 0).all(), "nothing was stored twice"


@pytest.mark.own_children
def test_settings_changed_on_resume_reach_the_actors_that_live_on_after_they_have_handed_over(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    server, actors = with_three_actors(start, write_config, run_dir)
    pids = {*steps_by_actor(run_dir)}
    kill(server.process.pid)
    server.wait()
    server = start(
        "learner-server",
        "--resume",
        str(run_dir),
        "--set",
        "env.rebuilds_per_minute=3",
    )
    wait_for(lambda: lives(run_dir) == [2, 2, 2], "each process begins a second life")
    grows(run_dir, pids)
    server.signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM, server.output()
    assert [actor.wait() for actor in actors] == [0, 0], actors[0].output() + actors[1].output()
    said = "".join(actor.output() for actor in actors)
    assert said.count("starts anew: env.rebuilds_per_minute: 0 → 3\n") == 3
    assert "were not acknowledged" not in said
    table = map_actor_table(run_dir / "shared", create=False)
    known = table[table["pid"] > 0]
    assert_stored(run_dir, {tag: int(row["env_steps"]) for tag, row in enumerate(known)})


def lives(run_dir: Path) -> list[int]:
    """How often each actor process has begun to act."""
    table = map_actor_table(run_dir / "shared", create=False)
    acted = table[(table["pid"] > 0) & (table["env_steps"] > 0)]
    return [int(count) for count in np.unique(acted["pid"], return_counts=True)[1]]


def stored_by_actor(run_dir: Path) -> dict[int, int]:
    """Steps stored of each actor process, by its pid."""
    table = map_actor_table(run_dir / "shared", create=False)
    return {int(row["pid"]): int(row["items"]) for row in table if row["pid"]}


def stop_and_copy(server: Command, directory: Path, target: Path) -> None:
    """Copy a directory while neither the trainer nor its children write."""
    pids = with_descendants(server.process.pid)
    signal_each(pids, signal.SIGSTOP)
    shutil.copytree(directory, target)
    signal_each(pids, signal.SIGCONT)
