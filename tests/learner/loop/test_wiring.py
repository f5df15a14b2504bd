"""A learner is put together from a run: recorders know which run it is, and everything opened is closed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.config.run_config import load_config
from common.errors import ConfigError, CrossborderError, PluginError
from common.interfaces import RunIdentity
from learner.loop.in_turns import Trainer, train_in_turns
from learner.loop.server import LearnerServer
from learner.storage.rundir import list_states
from tests.conftest import MakeConfig
from tests.learner.loop.test_in_turns import IN_TURNS


class PlainRecorder:
    """A recorder as earlier releases knew them: it is built with the run's directory alone."""

    def __init__(self, run_dir: Path) -> None:
        self._diary = run_dir / "diary"
        self._note("built")

    def _note(self, event: str) -> None:
        with self._diary.open("a") as file:
            file.write(f"{event}\n")

    def write(self, opt_steps: int, record: Mapping[str, float]) -> None:
        self._note(f"record {opt_steps}")

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        self._note("closed")


class NamedRecorder(PlainRecorder):
    """Writes down which run it is of."""

    def __init__(self, run_dir: Path, *, identity: RunIdentity | str) -> None:
        super().__init__(run_dir)
        if isinstance(identity, RunIdentity):
            self._note(f"run {identity.run_id} {identity.is_resumed}")
        else:
            self._note(f"run {identity}")


class ToldRecorder(PlainRecorder):
    """Writes down the configuration that it is told."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], credentials: str) -> None:
        super().__init__(run_dir)
        assert credentials == "hunter2"
        self._note(f"config {json.dumps(config)}")


def recorder(kind: type, **params: Any) -> dict[str, Any]:
    return {"target": f"tests.learner.loop.test_wiring:{kind.__name__}", "params": params}


def notes(make_config: MakeConfig, *recorders: dict[str, Any], lives: int = 1) -> list[str]:
    """The diary of a run of ten opt steps in each of its lives."""
    for life in range(1, lives + 1):
        trainer = {"max_opts": 10 * life, "record_interval": 10}
        result = train_in_turns(make_config(agent=IN_TURNS, recorders=recorders, trainer=trainer), resume=True)
    return (result.run_dir / "diary").read_text().splitlines()


def test_a_recorder_with_such_a_parameter_is_told_which_run_it_is_and_whether_it_is_resumed(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    found = notes(make_config, recorder(NamedRecorder), lives=2)
    run_id = json.loads((tmp_path / "run" / "run.json").read_text())["run_id"]
    assert [line for line in found if line.startswith("run")] == [f"run {run_id} False", f"run {run_id} True"]


def test_a_recorder_with_such_a_parameter_is_told_the_configuration_without_its_secrets(
    make_config: MakeConfig,
) -> None:
    told = recorder(ToldRecorder, credentials="hunter2")
    (line,) = (line for line in notes(make_config, told) if line.startswith("config"))
    config = json.loads(line.removeprefix("config "))
    assert (config["name"], config["trainer"]["max_opts"]) == ("counting", 10)
    assert config["recorders"] == [{**told, "params": {"credentials": "***"}}]


def test_a_recorder_without_the_parameter_is_built_as_before(make_config: MakeConfig) -> None:
    assert notes(make_config, recorder(PlainRecorder)) == ["built", "record 10", "closed"]


def make_nothing(**_: Any) -> object:
    """A factory of a recorder that makes something else."""
    return object()


def test_a_factory_that_makes_no_recorder_ends_the_run_before_it_begins(make_config: MakeConfig) -> None:
    config = make_config(agent=IN_TURNS, recorders=[{"target": f"{__name__}:make_nothing"}])
    config.check()  # What a function makes is seen only when the run begins.
    with pytest.raises(
        PluginError, match=r"^recorders\.0\.target: expected a .*Recorder, found object without write, "
    ):
        train_in_turns(config)


def test_a_parameter_of_that_name_in_the_configuration_goes_before(make_config: MakeConfig) -> None:
    config = make_config(agent=IN_TURNS, recorders=[recorder(NamedRecorder, identity="mine")])
    config.check()
    with Trainer(config) as trainer:
        assert "run mine" in (trainer.run.dir.path / "diary").read_text()


def test_the_check_asks_for_no_identity(make_config: MakeConfig) -> None:
    make_config(recorders=[recorder(NamedRecorder)]).check()
    with pytest.raises(ConfigError, match=r"recorders\.0\.params\.identitty: unknown parameter"):
        make_config(recorders=[recorder(NamedRecorder, identitty="x")]).check()


@pytest.mark.parametrize("start", [Trainer, LearnerServer])
def test_a_resume_that_fails_leaves_the_settings_of_the_run_and_one_that_begins_replaces_them(
    make_config: MakeConfig, tmp_path: Path, start: type[Trainer | LearnerServer]
) -> None:
    agent = IN_TURNS if start is Trainer else {}
    make = partial(make_config, agent=agent, server={"grace_seconds": 0.1})
    start(make(name="first")).__exit__()
    file = tmp_path / "run" / "config.yaml"
    before = file.read_text()
    missing = {"certificate": str(tmp_path / "missing.pem"), "key": str(tmp_path / "missing.key")}
    fails: dict[str, Any] = {"server": {"tls": missing}} if start is LearnerServer else {}
    fails = fails or {"recorders": [recorder(ToldRecorder, credentials="wrong")]}
    with pytest.raises(CrossborderError):
        start(make(name="second", **fails), resume=True)
    assert file.read_text() == before
    with start(make(name="second"), resume=True):
        assert load_config(file).name == "second"


def test_a_learner_that_cannot_be_put_together_closes_what_it_has_opened_and_begins_no_run(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    missing = {"target": "tests.parts:NoSuchRecorder"}
    with pytest.raises(PluginError, match="no callable 'NoSuchRecorder'"):
        Trainer(make_config(agent=IN_TURNS, recorders=[recorder(PlainRecorder), missing]))
    assert (tmp_path / "run" / "diary").read_text().splitlines() == ["built", "closed"]
    assert not (tmp_path / "run" / "run.json").exists()
    assert train_in_turns(make_config(agent=IN_TURNS, trainer={"max_opts": 10})).opt_steps == 10


def test_a_run_can_be_resumed_as_soon_as_its_learner_is_made(make_config: MakeConfig, tmp_path: Path) -> None:
    with Trainer(make_config(agent=IN_TURNS)):
        assert [state.name for state in list_states(tmp_path / "run")] == ["0"]
        assert (tmp_path / "run" / "run.json").exists()
