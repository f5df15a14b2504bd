from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from common.errors import ChildFailedError, ConfigError
from crossborder.sweeps import suite_running
from crossborder.sweeps.suite_results import read_runs
from crossborder.sweeps.suite_running import SuiteRunner
from learner.storage.rundir import read_identity
from tests.crossborder.sweeps.suites import case, make_suite


def runner(tmp_path: Path, **changes: Any) -> SuiteRunner:
    return SuiteRunner(make_suite(tmp_path, **changes), tmp_path, tmp_path / "suite")


def seeds(tmp_path: Path) -> list[tuple[str, str, int | None]]:
    """The agent, task and seed of each run that has ended."""
    return [(run.agent, run.task, run.seed) for run in read_runs(tmp_path / "suite" / "results.jsonl")]


def test_all_agents_get_their_first_seed_before_one_gets_its_second_and_no_more_runs_than_asked_for(
    tmp_path: Path,
) -> None:
    stopping, cases = threading.Event(), [case("a", "easy", 1.0), case("b", "easy", 1.0)]
    runner(tmp_path, cases=cases).train(stopping, None, jobs=2, most=1)
    assert seeds(tmp_path) == [("a", "easy", 0)]
    runner(tmp_path, cases=cases).train(stopping, None, jobs=1, most=2)
    assert seeds(tmp_path) == [("a", "easy", 0), ("a", "easy", 1), ("b", "easy", 0)]


def test_a_suite_that_is_to_stop_begins_no_run(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    begun = runner(tmp_path)
    begun.train(stopping, None, jobs=1, most=None)
    assert "| good | - | - | - | 0 of 4 |" in begun.compare()


@pytest.mark.parametrize("n_seeds", [1, 4])
def test_a_case_whose_first_runs_all_fail_keeps_no_other_from_its_runs_and_fails_the_suite(
    tmp_path: Path, n_seeds: int
) -> None:
    cases = [case("a", "easy", 1.0, **{"evaluator.params.wort": 1}), case("b", "easy", 1.0)]
    failing, few = runner(tmp_path, cases=cases, seeds=[*range(n_seeds)]), min(n_seeds, 3)
    told = rf"a, easy: all of {few} trials failed; the output of the last one is in .*suite/a/easy/trials/000{few - 1}"
    with pytest.raises(ChildFailedError, match=told):
        failing.train(threading.Event(), None, jobs=1, most=None)
    assert seeds(tmp_path) == [("b", "easy", seed) for seed in range(n_seeds)]
    with pytest.raises(ChildFailedError, match=rf"^a, easy: all of {n_seeds} trials failed"):
        failing.train(threading.Event(), None, jobs=1, most=None)
    failing.train(threading.Event(), None, jobs=1, most=0)  # Asks for the table alone.


def test_a_case_may_be_added_later_and_none_may_change(tmp_path: Path) -> None:
    runner(tmp_path, cases=[case("a", "easy", 1.0)])
    runner(tmp_path, cases=[case("a", "easy", 1.0), case("a", "hard", 1.0)])
    with pytest.raises(ConfigError, match="expected the sweep that began there, found another fixed"):
        runner(tmp_path, cases=[case("a", "easy", 2.0)])


def test_seeds_may_be_added_later_and_only_they_are_trained(tmp_path: Path) -> None:
    cases, stopping = [case("a", "easy", 1.0)], threading.Event()
    runner(tmp_path, cases=cases, seeds=[0, 1]).train(stopping, None, jobs=1, most=None)
    runner(tmp_path, cases=cases, seeds=[2, 0, 1, 3]).train(stopping, None, jobs=1, most=None)
    assert seeds(tmp_path) == [("a", "easy", seed) for seed in range(4)]
    trials = sorted((tmp_path / "suite" / "a" / "easy" / "trials").glob("*/seed-*"))
    assert [f"{run.parent.name}/{run.name}" for run in trials] == [
        "0000/seed-0",
        "0001/seed-1",
        "0002/seed-2",
        "0003/seed-3",
    ]
    assert not any(read_identity(run).is_resumed for run in trials), "nothing was trained twice"
    with pytest.raises(ConfigError, match="found another seeds"):
        runner(tmp_path, cases=cases, seeds=[0, 1])


def test_a_missing_file_of_published_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.jsonl: expected a run in each line"):
        runner(tmp_path, published=["none.jsonl"])


def test_several_commands_that_write_the_results_at_one_time_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_running, "draw_suite", lambda *_: None)  # matplotlib draws in one thread only.
    runners = [runner(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(SuiteRunner.compare, runners * 25))
    assert {*tables} == {(tmp_path / "suite" / "table.md").read_text()}
