"""A new run fits the run that it begins from, or an error names what differs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.config.run_config import RunConfig, dump_config, load_config
from common.data import Column, Schema
from common.domain import Domain
from common.errors import CheckpointError
from common.plugins.part_config import PluginConfig
from learner.commands.sync_train import main
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.server import LearnerServer
from learner.replay.layout import Layout
from learner.storage.origin import Origin
from learner.storage.origin_checks import act_by_policy, find_differences, require_same_spaces
from tests.conftest import MakeConfig
from tests.learner.ingest.by_hand import Client
from tests.learner.loop.test_in_turns import cartpole
from tests.learner.test_resume import changed

SMALL: dict[str, Any] = {"units": [8], "batch_size": 8, "update": "eager"}
SAC: dict[str, Any] = {"target": "common.agents.sac:SAC", "params": SMALL}
PENDULUM: dict[str, Any] = {"target": "gymnasium:make", "params": {"id": "Pendulum-v1"}}


def schema(width: int = 3, bound: float = 1.0) -> Schema:
    action = Column.of("action", np.float32, (1,), Domain.between(-bound, bound, np.float32))
    return Schema.of_rows((Column.of("obs", np.float32, (width,)), action))


def run_of(directory: Path, columns: Schema) -> Path:
    """The directory of a run whose replay has these columns."""
    replay = directory / "shared" / "replay"
    replay.mkdir(parents=True)
    Layout(columns, capacity=10, slack=0).write(replay)
    return directory


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (schema(width=4), r"expected the spaces .* obs <f4 \[3\], found obs <f4 \[4\]"),
        (schema(bound=2.0), r"action <f4 \[1\] \(-1 to 1\), found action <f4 \[1\] \(-2 to 2\)"),
    ],
)
def test_other_spaces_are_refused_by_name(tmp_path: Path, before: Schema, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        require_same_spaces(run_of(tmp_path, before), schema())


def test_spaces_are_not_compared_where_the_earlier_ones_are_not_known(tmp_path: Path) -> None:
    require_same_spaces(run_of(tmp_path / "same", schema()), schema())
    require_same_spaces(run_of(tmp_path / "items", Schema((Column.of("n", np.int64),))), schema())
    require_same_spaces(tmp_path / "no replay", schema())


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (SAC, []),
        ({}, []),
        ({**SAC, "params": {**SMALL, "units": (8,), "lr": 3e-4}}, []),
        ({**SAC, "params": {"units": [9]}}, ["units: [9] there, [8] here", "batch_size: 256 there, 8 here"]),
        ({"target": "common.agents.dqn:DQN"}, ["common.agents.dqn:DQN there, common.agents.sac:SAC here"]),
        ({**SAC, "params": {"gone": 1}}, ["gone: 1 there, nothing here"]),
    ],
)
def test_the_settings_in_which_two_agents_differ_are_named(before: dict[str, Any], found: list[str]) -> None:
    differences = find_differences(before, PluginConfig(**SAC))
    assert all(any(each.endswith(end) for each in differences) for end in found)
    assert bool(differences) == bool(found)


def test_only_agents_with_a_random_start_get_another_setting(make_config: MakeConfig) -> None:
    assert act_by_policy(make_config(agent=SAC)).agent.params["random_opts"] == 0
    wanted = make_config(agent={**SAC, "params": {"random_opts": 5}})
    assert act_by_policy(wanted) == wanted
    assert act_by_policy(plain := make_config(agent={"target": "common.agents.dqn:DQN"})) == plain


def pendulum(run_dir: Path) -> RunConfig:
    values = {"env": PENDULUM, "agent": SAC, "trainer": {"max_opts": 3, "warmup_period": 10, "eval_interval": 0}}
    return changed(cartpole(run_dir, seed=3), **values)


def test_a_run_from_a_saved_agent_acts_by_its_policy_and_so_does_a_later_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SAC and TD3 would act at random until the first opt step, which comes after the warm-up."""
    train_in_turns(pendulum(tmp_path / "earlier"))
    config = changed(pendulum(tmp_path / "run"), agent={**SAC, "params": {**SMALL, "lr": 0.01}})
    with caplog.at_level(logging.WARNING), Trainer(config, origin=Origin.at(tmp_path / "earlier")) as trainer:
        trainer.train()
        agent = trainer.run.parts.agent
    assert "agent.params.lr: 0.0003 there, 0.01 here" in caplog.text
    assert agent.config.random_opts == 0  # type: ignore[attr-defined]
    assert load_config(tmp_path / "run" / "config.yaml").agent.params["random_opts"] == 0
    with Trainer(changed(config, trainer={"max_opts": 6}), resume=True) as trainer:
        assert trainer.run.config.agent.params["random_opts"] == 0


def test_actors_are_told_to_act_by_the_policy(tmp_path: Path) -> None:
    train_in_turns(pendulum(tmp_path / "earlier"))
    metrics = {"trainer_port": None, "ingest_port": None}
    server = {"listen": "127.0.0.1:0", "grace_seconds": 0.5}
    config = changed(pendulum(tmp_path / "run"), metrics=metrics, server=server)
    with LearnerServer(config, origin=Origin.at(tmp_path / "earlier")) as learner:
        told = json.loads(Client(learner).join().config_json)
    assert told["agent"]["params"]["random_opts"] == 0


def test_the_check_loads_the_saved_agent_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in_turns(pendulum(tmp_path / "earlier"))
    (tmp_path / "run.yaml").write_text(dump_config(pendulum(tmp_path / "run")))
    words = ["--config", str(tmp_path / "run.yaml"), "--from", str(tmp_path / "earlier"), "--check"]
    assert main(words) == 0
    assert main([*words, "--set", "agent.params.units=[9]"]) == CheckpointError.exit_code
    assert "agent.params.units: [8] there, [9] here" in capsys.readouterr().err
    assert main([*words, "--set", f"env.wrappers=[{{target: '{__name__}:Narrow'}}]"]) == CheckpointError.exit_code
    assert "action <f4 [1] (-1 to 1), found action <f4 [1] (-2 to 2)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Narrow(gymnasium.wrappers.RescaleAction[Any, Any, Any]):
    """Takes actions from -1 to 1."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, np.float32(-1), np.float32(1))
