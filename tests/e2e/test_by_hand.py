"""The commands as a person runs them: a server in one terminal, workers in others, before, during and after."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner.shared.actor_table import map_actor_table
from learner.shared.control import ControlBlock
from tests.conftest import Command, children_of, descendants_of, endpoints, free_port, is_alive, kill, named, wait_for
from tests.learner.scrapes import scrape

Start = Callable[..., Command]
WriteConfig = Callable[..., Path]
ENDLESS = {"max_opts": 1_000_000_000, "eval_interval": 0, "record_interval": 100, "sync_interval": 10}

CALM: dict[str, Any] = {
    "trainer": ENDLESS,
    "env": {"target": "tests.parts:PacedEnv"},
    "replay": {"samples_per_insert": 1.6},
}
"""A run without an end that leaves the cores to others: neither its actors nor its trainer do all that they could."""


def steps_by_actor(run_dir: Path) -> dict[int, int]:
    """Environment steps per actor process, by its pid; none while the run has not come up."""
    if not (run_dir / "endpoints.json").exists():
        return {}
    table = map_actor_table(run_dir / "shared", create=False)
    return {int(row["pid"]): int(row["env_steps"]) for row in table if row["pid"]}


def trains(run_dir: Path) -> bool:
    """Whether the trainer has come up and is in its loop, in which a signal ends the run in order."""
    if not (run_dir / "endpoints.json").exists():
        return False
    return bool(ControlBlock.open(run_dir / "shared", writable=False).trainer_beats)


def grows(run_dir: Path, pids: set[int]) -> None:
    """Wait until each of these actors has taken more steps."""
    before = steps_by_actor(run_dir)
    wait_for(lambda: all(steps_by_actor(run_dir).get(pid, 0) > before.get(pid, 0) for pid in pids), f"{pids} go on")


@pytest.mark.own_children
def test_workers_come_and_go_and_ctrl_c_of_the_server_ends_all(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir, address = tmp_path / "run", f"127.0.0.1:{free_port()}"
    config = write_config(**CALM, push={"n_buffer": 1000})
    early = start("actor-worker", "--learner", address)
    wait_for(lambda: "waiting for the learner" in early.output(), "the early worker waits")
    server = start("learner-server", "--config", str(config), "--listen", address)
    late = start("actor-worker", "--learner", address)
    grows(run_dir, {early.process.pid, late.process.pid})
    last = start("actor-worker", "--learner", address)
    grows(run_dir, {last.process.pid})

    kill(late.process.pid)
    grows(run_dir, {early.process.pid, last.process.pid})
    last.signal(signal.SIGTERM)
    assert last.wait() == 143
    port = endpoints(run_dir)["trainer_metrics_port"]
    wait_for(lambda: scrape(port)["opt_steps_total"] > 0, "the learner learns from its rows")

    children = descendants_of(server.process.pid)
    assert children, "ingest at least"
    server.signal(signal.SIGINT)
    assert server.wait() == 130
    assert early.wait() == 0
    assert not any(map(is_alive, children))
    table = map_actor_table(run_dir / "shared", create=False)
    (row,) = (row for row in table if row["pid"] == last.process.pid)
    assert row["items"] == row["env_steps"] > 0, "the last worker has handed over what it had, less than a batch"
    assert "it was asked to stop" in server.output()
    for command in (server, early, last):
        assert "Traceback" not in command.output()


def test_a_worker_whose_environment_takes_a_signal_at_each_reset_gets_the_signal(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    """Worker 0 gets SIGINT and worker 1 SIGTERM."""
    env = {"target": "tests.parts:SignalTakingEnv", "params": {"number": int(signal.SIGINT)}}
    overrides = {1: {"env": {"number": int(signal.SIGTERM)}}}
    start("learner-server", "--config", str(write_config(**CALM | {"env": env}, overrides=overrides)))
    address = endpoints(tmp_path / "run")["learner"]
    workers = [start("actor-worker", "--learner", address, "--id", str(actor_id)) for actor_id in (0, 1)]
    assert [worker.wait() for worker in workers] == [130, 143], "".join(map(Command.output, workers))


def test_several_workers_of_one_command_are_restarted_and_end_with_the_learner(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    server = start("learner-server", "--config", str(write_config(**CALM)))
    manager = start("actor-worker", "--learner", endpoints(run_dir)["learner"], "--num-actors", "2")
    wait_for(lambda: len(steps_by_actor(run_dir)) == 2, "both join")
    killed = min(steps_by_actor(run_dir))
    kill(killed)
    wait_for(lambda: len(steps_by_actor(run_dir)) == 3, "one is replaced")
    grows(run_dir, steps_by_actor(run_dir).keys() - {killed})
    server.signal(signal.SIGINT)
    assert server.wait() == 130
    assert manager.wait() == 0
    assert manager.output().count("steps in") >= 2


@pytest.mark.own_children
def test_when_the_trainer_is_killed_no_child_is_left(start: Start, write_config: WriteConfig, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    server = start("learner-server", "--config", str(write_config(**CALM)), "--local-actors", "1")
    wait_for(lambda: steps_by_actor(run_dir), "the actor joins")
    (forks,) = children_of(server.process.pid)
    children = children_of(forks)
    assert [*named("ingest", forks), *named("worker-0", forks)] == children, "both share the memory of one process"
    kill(server.process.pid)
    wait_for(lambda: not any(is_alive(pid) for pid in [forks, *children]), "ingest and the actor end themselves")


def test_an_actor_outlives_its_learner_and_joins_the_next_run_at_the_same_address(
    start: Start, write_config: WriteConfig, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    first = start("learner-server", "--config", str(write_config(**CALM)), "--listen", address)
    worker = start("actor-worker", "--learner", address)
    wait_for(lambda: steps_by_actor(tmp_path / "run"), "it joins")
    kill(first.process.pid)
    wait_for(lambda: "connection to the learner lost" in worker.output(), "it notices")
    second_dir = tmp_path / "second"
    second = start(
        "learner-server",
        "--config",
        str(write_config(**CALM)),
        "--listen",
        address,
        "--run-dir",
        str(second_dir),
    )
    endpoints(second_dir)
    grows(second_dir, {worker.process.pid})
    assert "starting over" in worker.output()
    assert "unacknowledged rows are dropped" in worker.output()
    assert worker.output().count(f"as actor 0 of {address}") == 2, "it keeps its id, and with it how much it explores"
    second.signal(signal.SIGINT)
    assert (second.wait(), worker.wait()) == (130, 0)
