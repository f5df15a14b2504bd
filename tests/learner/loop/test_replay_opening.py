"""A run's replay is opened, made, or missed; its buffer is the one that the configuration names."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config.run_config import RunConfig
from common.errors import ConfigError, PluginError
from common.settings import validate
from examples.own_replay import RecentReplay
from learner.commands.sync_train import main
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.replay_opening import build_buffer
from learner.loop.server import train_async
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.uniform import UniformReplay
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS, SCHEMA, cartpole

RECENT: dict[str, Any] = {"target": "examples.own_replay:RecentReplay", "params": {"share": 0.5}}


class NoBuffer:
    """Takes what a replay buffer is given, but is none."""

    def __init__(self, memory: object, seed: int) -> None:
        self.seed = seed


def untimed_rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if "sec" not in k} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("replay", "kind"), [({}, UniformReplay), ({"prioritized": {}}, PrioritizedReplay), (RECENT, RecentReplay)]
)
def test_the_buffer_is_uniform_prioritised_or_the_users_own(
    tmp_path: Path, make_config: MakeConfig, replay: dict[str, Any], kind: type
) -> None:
    memory = ReplayMemory(tmp_path / "replay", SCHEMA, 100, create=True)
    assert type(build_buffer(memory, make_config(replay=replay))) is kind


def test_actors_fill_a_replay_buffer_of_ones_own_and_the_agent_learns_from_it(make_config: MakeConfig) -> None:
    config = make_config(replay={**RECENT, "samples_per_insert": 4}, trainer={"max_opts": 50})
    assert train_async(config, 1).opt_steps == 50  # The agent has checked every row.


@pytest.mark.parametrize("resident", [False, True])
def test_a_resumed_run_draws_from_a_buffer_of_ones_own_what_it_would_have_drawn(tmp_path: Path, resident: bool) -> None:
    def train(name: str, max_opts: int) -> Path:
        values = cartpole(tmp_path / name, 3, resident=resident, **RECENT).model_dump(mode="json")
        values["trainer"]["max_opts"] = max_opts
        return train_in_turns(validate(RunConfig, values), resume=True).run_dir

    alone = untimed_rows(train("alone", 200))
    train("resumed", 100)
    assert untimed_rows(train("resumed", 200)) == alone


def test_bad_items_are_not_drawn_from_a_buffer_of_ones_own(tmp_path: Path) -> None:
    with Trainer(cartpole(tmp_path / "run", 3, **RECENT)) as trainer:
        trainer.train()
        buffer, memory = trainer.run.buffer, trainer.run.memory
        bad = np.arange(memory.first(), memory.committed)[::2]
        memory.exclude(bad)
        buffer.batch(500)
        assert not np.isin(buffer.last_drawn, bad).any()


def test_what_is_no_replay_buffer_is_refused_by_name(make_config: MakeConfig) -> None:
    target = "tests.learner.loop.test_replay_opening:NoBuffer"
    message = r"replay\.target: expected a learner\.replay\.shared_buffer\.SharedReplay, found NoBuffer"
    with pytest.raises(PluginError, match=message), Trainer(make_config(agent=IN_TURNS, replay={"target": target})):
        pass


def test_the_check_finds_a_wrong_parameter_of_a_buffer_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "examples/own_replay.yaml", "--check"]
    assert main(words) == 0
    assert main([*words, "--set", "replay.params.shere=0.1"]) == ConfigError.exit_code
    assert "replay.params.shere: unknown parameter (did you mean 'share'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({**RECENT, "prioritized": {}}, "target and prioritized both name a replay buffer: leave out one of them"),
        ({"params": {"share": 0.5}}, "params are those of target, which is null"),
    ],
)
def test_settings_of_two_buffers_or_of_none_are_refused(
    make_config: MakeConfig, replay: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(replay=replay)


def test_a_replay_that_is_missing_begins_empty_and_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = cartpole(tmp_path / "run", 3)
    train_in_turns(config)
    stored = ReplayMemory.open_saved(tmp_path / "run" / "shared" / "replay").committed
    (tmp_path / "run" / "shared" / "replay").rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING), Trainer(config, resume=True) as trainer:
        assert (len(trainer.run.memory), trainer.run.memory.began) == (0, stored)
    assert "the replay is missing (shared/replay)" in caplog.text
