from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml

import common.agents
from actor.allowance import Allowance
from common import parts
from common.agents import networks
from common.config.actor_config import ActorConfig
from common.config.run_config import RunConfig, dump_config
from common.interfaces import Agent
from common.plugins import part_loading
from common.plugins.shipped import METHODS, OWN_PACKAGES, PLACES, SHIPPED, SHORT_NAMES, Role, write_out
from common.settings import validate
from crossborder import people, train
from crossborder.people.device import Device
from tests.conftest import ROOT


def classes_in(*modules: object) -> Iterator[type]:
    """Public concrete classes that these modules define."""
    for module in modules:
        for name, found in vars(module).items():
            is_defined_there = getattr(found, "__module__", "") == getattr(module, "__name__", None)
            if inspect.isclass(found) and is_defined_there and name[0] != "_" and not inspect.isabstract(found):
                yield found


def is_step_processor(part: type) -> bool:
    return all(hasattr(part, name) for name in ("schema", "reset", "process"))


def agent_modules() -> list[object]:
    return [importlib.import_module(f"common.agents.{m.name}") for m in pkgutil.iter_modules(common.agents.__path__)]


def named(found: Iterator[type] | list[type]) -> set[str]:
    return {f"{part.__module__}:{part.__name__}" for part in found}


def targets(role: Role) -> set[str]:
    return {*SHIPPED[role].values()}


def test_every_agent_is_listed() -> None:
    assert named([part for part in classes_in(*agent_modules()) if issubclass(part, Agent)]) == {
        *SHIPPED["agent"].values()
    }


def test_every_step_processor_is_listed() -> None:
    assert named([part for part in classes_in(parts) if is_step_processor(part)]) == {
        *SHIPPED["step processor"].values()
    }


def test_every_network_that_a_configuration_can_name_is_listed() -> None:
    """Such a network is built from ``in_shape`` and ``out_dim`` alone."""

    def fits(part: type) -> bool:
        required = [p.name for p in inspect.signature(part).parameters.values() if p.default is inspect.Parameter.empty]
        return issubclass(part, torch.nn.Module) and required == ["in_shape", "out_dim"]

    fitting = {name for name in networks.__all__ if isinstance(part := getattr(networks, name), type) and fits(part)}
    assert {f"common.agents.networks:{name}" for name in fitting} == targets("network")


def test_every_device_is_listed() -> None:
    modules = [importlib.import_module(f"crossborder.people.{m.name}") for m in pkgutil.iter_modules(people.__path__)]
    devices = [part for part in classes_in(*modules) if all(hasattr(part, name) for name in METHODS["device"])]
    assert named([part for part in devices if part is not Device]) == targets("device")


@pytest.mark.parametrize("target", SHIPPED["environment"].values())
def test_every_factory_of_environments_exists(target: str) -> None:
    found = part_loading.load_part(target)
    assert inspect.isfunction(found) or (isinstance(found, type) and issubclass(found, gymnasium.Env))


def test_every_shipped_part_is_in_a_package_of_ours_or_of_gymnasium() -> None:
    packages = {target.partition(":")[0].partition(".")[0] for target in SHORT_NAMES.values()}
    assert packages <= {*OWN_PACKAGES, "gymnasium"}


@pytest.mark.parametrize(("short", "target"), SHORT_NAMES.items())
def test_every_shipped_part_exists_and_a_class_has_its_own_name_as_short_name(short: str, target: str) -> None:
    found = part_loading.load_part(target)
    assert not isinstance(found, type) or found.__name__ == short


def test_every_short_name_names_one_part() -> None:
    assert len(SHORT_NAMES) == sum(len(names) for names in SHIPPED.values())
    assert len({*SHORT_NAMES.values()}) == len(SHORT_NAMES)


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
