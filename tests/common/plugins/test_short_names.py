from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from actor.allowance import Allowance
from common.config.actor_config import ActorConfig
from common.config.run_config import RunConfig, dump_config
from common.plugins.shipped import SHORT_NAMES
from common.plugins.short_names import PLACES, write_out
from common.settings import validate
from crossborder import train
from tests.conftest import ROOT

SHORT: dict[str, Any] = {
    "env": {
        "target": "gymnasium",
        "params": {"id": "CartPole-v1"},
        "wrappers": [
            {"target": "TimeLimit", "params": {"max_episode_steps": 9}},
            {"target": "Teleoperate", "params": {"device": {"target": "Keyboard"}}},
        ],
    },
    "agent": {"target": "DQN", "params": {"network": {"target": "NatureCnn"}}},
    "overrides": {0: {"agent": {"network": {"target": "ImpalaCnn"}}}},
    "evaluator": {"target": "DefaultEvaluator"},
    "replay": {"target": "QueueReplay", "view": {"target": "Sequences", "params": {"length": 2}}},
    "recorders": [{"target": "TensorBoardRecorder"}],
    "callbacks": [{"target": "EarlyStopping", "params": {"patience": 3}}],
    "trainer": {"max_opts": 1},
}


def in_full() -> dict[str, Any]:
    """The same configuration with the parts named in full."""
    text = json.dumps(SHORT)
    for short, target in {
        "gymnasium": "gymnasium:make",
        "TimeLimit": "gymnasium.wrappers:TimeLimit",
        "Teleoperate": "crossborder.people.teleoperation:Teleoperate",
        "Keyboard": "crossborder.people.keyboard:Keyboard",
        "DQN": "common.agents.dqn:DQN",
        "NatureCnn": "common.agents.networks:NatureCnn",
        "ImpalaCnn": "common.agents.networks:ImpalaCnn",
        "DefaultEvaluator": "common.evaluation:DefaultEvaluator",
        "QueueReplay": "learner.replay.queue:QueueReplay",
        "Sequences": "learner.views.sequences:Sequences",
        "TensorBoardRecorder": "learner.records.tensorboard:TensorBoardRecorder",
        "EarlyStopping": "learner.callbacks.early_stopping:EarlyStopping",
    }.items():
        assert text.count(f'"{short}"') == 1
        text = text.replace(f'"{short}"', f'"{target}"')
    return {**json.loads(text), "overrides": {0: json.loads(text)["overrides"]["0"]}}


def test_what_a_run_records_and_what_actors_get_names_parts_in_full() -> None:
    short, full = validate(RunConfig, SHORT), validate(RunConfig, in_full())
    assert short == full
    assert yaml.safe_load(dump_config(short)) == yaml.safe_load(dump_config(full))
    assert short.part_of(0).to_json() == full.part_of(0).to_json()
    Allowance(()).check(ActorConfig.from_json(short.part_of(0).to_json(), "join"))


def test_a_saved_policy_names_its_parts_in_full(tmp_path: Path) -> None:
    values = {
        "env": {"target": "gymnasium", "params": {"id": "CartPole-v1"}},
        "agent": {"target": "DQN", "params": {"units": [4]}},
        "trainer": {"max_opts": 2, "warmup_period": 4, "eval_interval": 2},
        "evaluator": {"episodes": 1},
    }
    run = train(values, settings={"run_dir": str(tmp_path / "run")}, progress=False)
    meta = json.loads((run.run_dir / "final" / "meta.json").read_text())
    assert meta["config"]["agent"]["target"] == "common.agents.dqn:DQN"
    assert meta["config"]["env"]["target"] == "gymnasium:make"


@pytest.mark.parametrize("target", ["my_parts:DQN", "DQNN", "dqn", 3, None])
def test_another_name_stays_as_it_is(target: object) -> None:
    values = {"agent": {"target": target, "params": {"DQN": {"target": "DQN"}, "names": ["DQN"]}}}
    assert write_out(values) == values


@pytest.mark.parametrize("values", [None, "DQN", [], {}, {"env": None, "agent": "DQN", "recorders": {"target": "DQN"}}])
def test_values_of_other_kinds_are_left_to_the_checks_of_the_configuration(values: object) -> None:
    assert write_out(values) == values


def test_every_place_is_written_out() -> None:
    for place in PLACES:
        values: Any = {"target": "DQN"}
        for key in reversed(place.split(".")):
            values = [values] if key == "*" else {key: values}
        assert "common.agents.dqn:DQN" in str(write_out(values)), place


FILES = sorted(
    [
        *(ROOT / "configs").rglob("*.yaml"),
        *(ROOT / "examples").rglob("*.yaml"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "README.md",
    ]
)
TARGET = r"\btarget[:=] ?\"?([A-Za-z_][\w.:]*)"


def test_our_configurations_and_pages_name_parts_shortly_where_they_can() -> None:
    named = {(path.name, each) for path in FILES for each in re.findall(TARGET, path.read_text())}
    assert [each for each in named if each[1] in SHORT_NAMES.values()] == [], "write their short names"
    assert [each for each in named if ":" not in each[1] and each[1] not in SHORT_NAMES] == []
