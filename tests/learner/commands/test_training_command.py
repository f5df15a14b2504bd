from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from common.config.run_config import RunConfig
from common.errors import BudgetExhaustedError, ConfigError, TakenOverError
from common.process.command import Main
from learner.commands import learner_server, offline_train, sync_train
from learner.commands.sync_train import main
from learner.commands.training_command import tell_result
from learner.loop.learner import Outcome
from learner.loop.run import Result
from learner.storage.rundir import read_identity
from tests.conftest import MakeConfig
from tests.learner.storage.mirrored import RUN_ID, MirroredRun
from tests.learner.test_resume import ended, once

__all__ = ["ended", "once"]  # Fixtures.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "a.yaml", "--with", "replay"], "name a run with --from"),
        (["--config", "a.yaml", "--from", "x", "--with", "repaly"], "unknown value 'repaly' (did you mean 'replay'?)"),
        (["--resume", "run", "--from", "x"], "leave out one of them"),
    ],
)
def test_options_that_contradict_each_other_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --config"),
        (["--config", "a.yaml", "--resume", "run"], "leave out --config, or DIR"),
        (["--resume", "run", "--run-dir", "other"], "leave out --run-dir, or DIR"),
        (["--resume", "run", "--set", "run_dir=other"], "leave out --run-dir, or DIR"),
    ],
)
def test_a_run_is_resumed_by_its_own_configuration(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_resume_without_a_directory_needs_one_in_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "configs/cartpole.yaml", "--resume"]) == ConfigError.exit_code
    assert "--resume: expected a run directory, found none" in capsys.readouterr().err


def test_the_runs_own_configuration_is_taken_with_the_values_of_set(
    ended: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--resume", str(tmp_path / "run"), "--set", "trainer.max_opts=300", "--show-config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["run_dir"] == str(tmp_path / "run")
    assert (shown["seed"], shown["trainer"]["max_opts"]) == (3, 300)


def test_a_directory_may_have_any_characters_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "configs/cartpole.yaml", "--run-dir", "runs/\U0001f916", "--show-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["run_dir"] == "runs/\U0001f916"


@pytest.mark.parametrize("main", [sync_train.main, offline_train.main])
def test_a_command_that_mirrors_nothing_leaves_the_mirror_to_its_learner(
    main: Main, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    mirrored = MirroredRun(tmp_path / "production")
    mirrored.mirroring.write_state()
    path = write_config(storage={"mirror": mirrored.url}, run_dir=str(tmp_path / "run"))
    assert main(["--config", str(path), "--resume", "--show-config"]) == 0
    assert not (tmp_path / "run").exists()
    mirrored.mirror.require_owner()


def test_learner_server_restores_a_run_from_its_mirror(write_config: Callable[..., Path], tmp_path: Path) -> None:
    mirrored = MirroredRun(tmp_path / "production")
    mirrored.mirroring.write_state()
    path = write_config(storage={"mirror": mirrored.url}, run_dir=str(tmp_path / "run"))
    assert learner_server.main(["--config", str(path), "--resume", "--show-config"]) == 0
    assert read_identity(tmp_path / "run").run_id == RUN_ID
    with pytest.raises(TakenOverError):
        mirrored.mirror.require_owner()


def test_the_check_finds_a_callback_that_cannot_be_built(
    write_config: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(callbacks=[{"target": "EarlyStopping", "params": {"patience": 0}}])
    assert main(["--config", str(path), "--check"]) == ConfigError.exit_code
    assert "EarlyStopping: expected patience of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", Outcome)
def test_a_run_that_ends_by_itself_below_its_target_score_fails(
    outcome: Outcome, make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(trainer={"max_opts": 10, "eval_interval": 5, "target_score": 50.0})
    result = Result(outcome, best_score=20.0, opt_steps=10, samples_total=100, seconds=1.0, run_dir=tmp_path)
    with nullcontext() if outcome in (Outcome.TARGET, Outcome.STOPPED) else pytest.raises(BudgetExhaustedError):
        tell_result(config, result, "")
    assert f"{outcome.value}; best evaluation 20.0" in capsys.readouterr().out
