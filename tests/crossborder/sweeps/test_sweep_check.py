from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, PluginError
from crossborder.sweeps.sweep_check import check_sweep
from tests.conftest import ROOT
from tests.crossborder.sweeps.worth import WORTH, make_sweep


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arguments": ["--local-actors", "2"]}, "unknown option --local-actors"),
        ({"arguments": ["--local-actors", "two"], "command": "learner-server"}, "expected 0 or more, found 'two'"),
        ({"arguments": ["status"], "command": "learner-server"}, ""),
        ({"arguments": ["--with", "replay"]}, "name a run with --from"),
        ({"arguments": ["--help"]}, ""),
        ({"arguments": ["--check"]}, ""),
    ],
)
def test_arguments_with_which_no_run_would_train_are_refused(
    tmp_path: Path, changes: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, **changes)
    expected = f"arguments: expected options with which {sweep.command} trains, found {' '.join(sweep.arguments)}$"
    with pytest.raises(ConfigError, match=expected):
        check_sweep(sweep)
    assert told in capsys.readouterr().err


def test_a_setting_of_the_arguments_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_opt: unknown key \(did you mean 'max_opts'"):
        check_sweep(make_sweep(tmp_path, arguments=["--set", "trainer.max_opt=3"]))


def test_a_mirror_for_all_runs_is_refused(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, arguments=["--set", f"storage.mirror=file://{tmp_path}/mirror"])
    with pytest.raises(ConfigError, match=r"arguments: expected no storage\.mirror, found one: each run needs"):
        check_sweep(sweep)


def test_arguments_of_the_command_are_taken(tmp_path: Path) -> None:
    check_sweep(make_sweep(tmp_path, arguments=["--local-actors", "2"], command="learner-server"))


def test_a_score_that_no_run_would_record_is_refused_with_the_nearest_key(tmp_path: Path) -> None:
    cartpole = {"config": str(ROOT / "configs/cartpole.yaml"), "space": {"agent.params.lr": [0.1]}}
    for key in ("loss", "train_return"):
        check_sweep(make_sweep(tmp_path, **cartpole, score={"record": key}))
    with pytest.raises(ConfigError, match=r"score\.record: expected a column .*, found 'los' \(did you mean 'loss'"):
        check_sweep(make_sweep(tmp_path, **cartpole, score={"record": "los"}))


def test_an_evaluator_of_ones_own_may_record_the_score(tmp_path: Path) -> None:
    check_sweep(make_sweep(tmp_path, space={WORTH: [1.0]}, score={"record": "coins"}))


def test_an_environment_whose_package_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(PluginError, match=r"pip install 'crossborder\[minatar\]'"):
        check_sweep(make_sweep(tmp_path, config=str(ROOT / "configs/minatar_breakout.yaml"), space={}))
