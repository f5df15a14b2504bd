from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config.nested import read_yaml
from common.errors import ConfigError
from common.settings import validate
from crossborder.sweeps.suite_config import SuiteConfig, find_suite
from crossborder.sweeps.suite_results import read_runs
from crossborder.sweeps.sweep_config import first_config
from tests.conftest import ROOT
from tests.crossborder.sweeps.suites import case, make_suite

SHIPPED = sorted((ROOT / "configs" / "suites").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_suite_has_all_agents_in_all_tasks_and_their_configurations_are_right(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # Files are found from any directory.
    suite = validate(SuiteConfig, read_yaml(find_suite(path.stem)))
    sweeps = suite.sweeps(path.parent)
    assert len(sweeps) == len(suite.tasks) * len({case.agent for case in suite.cases})
    for sweep in sweeps.values():
        config = first_config(sweep)
        assert config.trainer.target_score is None, "every run uses up its budget"
    for file in suite.published:
        assert {run.task for run in read_runs(path.parent / file)} <= suite.tasks.keys()


def test_values_of_a_case_go_before_those_of_the_suite_and_those_before_the_file(tmp_path: Path) -> None:
    cases = [case("a", "easy", 5.0, **{"trainer.max_opts": 10}), case("b", "easy", 5.0)]
    suite = make_suite(tmp_path, cases=cases, fixed={"trainer.max_opts": 20, "trainer.eval_interval": 5})
    configs = [first_config(sweep).trainer for sweep in suite.sweeps(tmp_path).values()]
    assert [(config.max_opts, config.eval_interval, config.record_interval) for config in configs] == [
        (10, 5, 10),
        (20, 5, 10),
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cases": [case("a", "hart", 1.0)]}, r"expected one of tasks, found hart \(did you mean 'hard'\?\)"),
        ({"cases": [case("a", "easy", 1.0)] * 2}, "expected a in easy once, found it twice"),
        ({"tasks": {"easy": [1, 1], "hard": [0, 1]}}, "tasks.easy: expected two different scores, found 1 twice"),
        ({"cases": [case("../a", "easy", 1.0)]}, r"cases\.0\.agent"),
        ({"cases": []}, "cases"),
    ],
)
def test_a_wrong_suite_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_suite(tmp_path, **changes)


def test_a_suite_that_is_not_shipped_is_answered_with_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"one of classic, .*, found 'clasic' \(did you mean 'classic'\?\)"):
        find_suite("clasic")
