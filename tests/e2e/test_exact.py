"""A run in turns that is killed with kill -9 and resumed is the run that was left alone, to the last bit."""

from __future__ import annotations

import csv
import json
import logging
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from common.config.run_config import RunConfig, dump_config
from common.settings import validate
from learner.loop.in_turns import train_in_turns
from learner.storage.checkpoint import read_best
from tests.conftest import Command, kill, merged, wait_for
from tests.e2e.test_resume import kept, resumed_at
from tests.stored import open_replay, stored_links, stored_rows

ENDLESS, FURTHER, MOST = 1_000_000, 80, 60
FEW = 20
"""Opt steps of PPO that take as long as some hundred of the others: each has several passes over whole rollouts."""
CARTPOLE: dict[str, Any] = {
    "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
    "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [16], "explorer": {"final_step": 150}}},
    "exploration": {"epsilons": [0.2]},
    "replay": {"capacity": 200, "samples_per_insert": 16},
    "trainer": {
        "warmup_period": 50,
        "eval_interval": 25,
        "record_interval": 15,
        "checkpoint_seconds": 0.02,
    },
    "evaluator": {"episodes": 2},
}
PENDULUM: dict[str, Any] = {
    "env": {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}},
    "agent": {"target": "common.agents.sac:SAC", "params": {"units": [16], "batch_size": 32}},
    "replay": {"capacity": 200, "samples_per_insert": 32},
}
PASSES: dict[str, Any] = {"batch_size": 3, "minibatches": 3, "epochs": 2, "update": "eager"}
ROLLOUTS: dict[str, Any] = {
    "target": "learner.replay.queue:QueueReplay",
    "samples_per_insert": 1,
    "view": {"target": "learner.views.rollouts:Rollouts", "params": {"length": 6}},
}
EAGER: dict[str, Any] = {"params": CARTPOLE["agent"]["params"] | {"update": "eager"}}
"""Each start of a captured agent traces its updates anew, which takes as long as the rest of its training here."""
RUNS: dict[str, dict[str, Any]] = {
    "three environments, n-step and priorities": {
        "agent": EAGER,
        "replay": {"view": {"params": {"n": 3}}, "prioritized": {"beta_0": 1.0}},
        "push": {"initial_priorities": True},
        "envs_per_actor": 3,
    },
    "sac": PENDULUM,
    "ppo": {
        "agent": {
            "target": "common.agents.ppo:PPO",
            "params": {"units": [16], "normalize_observations": True, **PASSES},
        },
        "replay": ROLLOUTS,
        "trainer": {"warmup_period": 1, "eval_interval": 8, "record_interval": 5},
        "envs_per_actor": 3,
    },
    "ppo with a memory": {
        "agent": {
            "target": "common.agents.recurrent_ppo:RecurrentPPO",
            "params": {"units": [8], "memory": {"width": 8}, **PASSES},
        },
        "replay": ROLLOUTS,
        "trainer": {"warmup_period": 1, "eval_interval": 8, "record_interval": 5},
        "envs_per_actor": 3,
    },
    "without a ratio": {"agent": EAGER, "replay": {"samples_per_insert": None}, "envs_per_actor": 2},
}
KILLED_TWICE = {"three environments, n-step and priorities", "ppo with a memory"}


def configured(run_dir: Path, changes: dict[str, Any], max_opts: int) -> RunConfig:
    values = merged(
        merged({**CARTPOLE, "run_dir": str(run_dir), "seed": 1}, changes), {"trainer": {"max_opts": max_opts}}
    )
    return validate(RunConfig, values)


def records(run_dir: Path) -> list[dict[str, str]]:
    """All that was recorded, but what depends on time."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if "sec" not in k} for row in csv.DictReader(file)]


def last_state(run_dir: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Networks, optimisers, generators, counters, priorities and episodes, but what depends on time."""
    path = run_dir / "checkpoints" / str(kept(run_dir))
    values = json.loads((path / "state.json").read_text())
    del values["learner"]["moment"]["seconds"], values["window"]["seconds"], values["window"]["eval_seconds"]
    return load_file(path / "state.safetensors"), values


def rows(run_dir: Path) -> dict[str, Any]:
    """The rows and their links."""
    return {"first": open_replay(run_dir).first(), "links": stored_links(run_dir), **stored_rows(run_dir)}


def assert_same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def assert_same(run: Path, other: Path) -> None:
    """Everything two runs leave behind is equal, bit for bit."""
    assert records(run) == records(other)
    assert read_best(run) == read_best(other)
    for name in ("best", "final"):
        assert_same_tensors(*(load_file(path / name / "model.safetensors") for path in (run, other)))
    (tensors, values), (other_tensors, other_values) = last_state(run), last_state(other)
    assert_same_tensors(tensors, other_tensors)
    assert values == other_values
    np.testing.assert_equal(rows(run), rows(other))


def best_opt_steps(run_dir: Path) -> int:
    """The opt step of the best policy so far; 0 if none was scored."""
    meta = run_dir / "best" / "meta.json"
    return int(json.loads(meta.read_text())["opt_steps"]) if meta.exists() else 0


def wait_beyond(run_dir: Path, after: int, most: int = MOST) -> None:
    """Wait for a checkpoint at a random opt step of the next ``most`` ones, or a little later."""
    at = after + random.randint(1, most)
    wait_for(lambda: kept(run_dir) >= at, f"opt step {at}")


def train_until_killed(start: Callable[..., Command], config: Path, run_dir: Path, most: int) -> None:
    """Train in another process, or go on, until it is killed with kill -9 at most so many opt steps later."""
    run = start("sync-train", "--config", str(config), "--resume")
    wait_beyond(run_dir, kept(run_dir), most)
    kill(run.process.pid)
    assert run.wait() == -signal.SIGKILL, run.output()


def test_sync_train_killed_and_resumed_is_the_run_that_was_left_alone(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    alone, killed, config = tmp_path / "alone", tmp_path / "killed", tmp_path / "config.yaml"
    config.write_text(dump_config(configured(killed, {}, ENDLESS)))
    run = start("sync-train", "--config", str(config))
    wait_beyond(killed, 0)
    kill(run.process.pid)
    run.wait()
    at = kept(killed)
    again = start("sync-train", "--resume", str(killed), "--set", f"trainer.max_opts={at + FURTHER}")
    train_in_turns(configured(alone, {}, at + FURTHER))
    assert again.wait() == 0, again.output()
    assert resumed_at(again) == at
    assert_same(alone, killed)


@pytest.mark.parametrize("name", RUNS)
def test_so_it_is_whatever_is_trained_and_drawn_and_also_when_killed_twice(
    start: Callable[..., Command], name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = RUNS[name]
    alone, killed, config = tmp_path / "alone", tmp_path / "killed", tmp_path / "config.yaml"
    config.write_text(dump_config(configured(killed, changes, ENDLESS)))
    most, further = (FEW, FEW) if changes.get("replay") == ROLLOUTS else (MOST, FURTHER)
    for _ in range(2 if name in KILLED_TWICE else 1):
        train_until_killed(start, config, killed, most)
    # A killed process may have scored its best policy long after its last checkpoint, and ``best/`` stays.
    max_opts = max(kept(killed), best_opt_steps(killed)) + further
    train_in_turns(configured(killed, changes, max_opts), resume=True)
    train_in_turns(configured(alone, changes, max_opts))
    assert_same(alone, killed)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [], "nothing to warn of"
