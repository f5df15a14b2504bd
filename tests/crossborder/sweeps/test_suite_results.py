from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from common.errors import ConfigError
from crossborder.curves.statistics import summarize
from crossborder.sweeps.suite_config import SuiteConfig
from crossborder.sweeps.suite_results import (
    SuiteRun,
    collect_runs,
    group_runs,
    read_runs,
    shares,
    to_lines,
    write_table,
)
from tests.crossborder.sweeps.suites import make_suite
from tests.crossborder.sweeps.test_results import finished


def run(agent: str, task: str, *scores: float, **others: Any) -> SuiteRun:
    """A run with a score after every ten steps."""
    return SuiteRun(agent=agent, task=task, curve=tuple((10 * (i + 1), s) for i, s in enumerate(scores)), **others)


def cells(suite: SuiteConfig, *runs: SuiteRun) -> dict[str, list[str]]:
    """The cells of the table, by agent."""
    rows = [line.strip("| ").split(" | ") for line in write_table(suite, group_runs(suite, runs)).splitlines()[2:]]
    return {row[0]: row[1:] for row in rows if len(row) > 1}


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = [run("a", "easy", 1.0, seed=0, opt_steps=5), run("b", "hard", 2.5, runs=3, deviation=0.5, source="a page")]
    (tmp_path / "runs.jsonl").write_text(to_lines(runs))
    assert read_runs(tmp_path / "runs.jsonl") == runs


@pytest.mark.parametrize(
    "line", ["no JSON", '{"agent": "a", "task": "b"}', '{"agent": "a", "task": "b", "curve": [[1, NaN]]}']
)
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "runs.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"runs.jsonl: expected a run in each line"):
        read_runs(tmp_path / "runs.jsonl")


def test_a_run_that_diverged_counts_as_nothing_and_a_failed_one_is_left_out(tmp_path: Path) -> None:
    directory, study = finished(tmp_path, 1.0, TrialState.PRUNED, TrialState.FAIL, space={}, seeds=[7, 8, 9])
    for number, seed, scores in ((0, 7, "4,8"), (1, 8, "70,nan")):
        place = directory.place_of(number) / f"seed-{seed}"
        place.mkdir()
        lines = [f"{i},{10 * i},{i / 2},{score}" for i, score in enumerate(scores.split(","), 1)]
        (place / "metrics.csv").write_text("\n".join(["opt_steps,samples_total,seconds,eval_reward", *lines, ""]))
    found = collect_runs("a", "easy", directory, study)
    assert [(each.seed, each.curve, each.opt_steps, each.seconds, each.has_diverged) for each in found] == [
        (7, ((10, 4), (20, 8)), 2, 1.0, False),
        (8, ((10, 70),), 2, 1.0, True),
    ]
    assert [each.score(make_suite(tmp_path, tasks={"easy": [-5, 90]}, cases=CASES)) for each in found] == [8, -5]


CASES = [{"agent": "a", "task": "easy", "config": "counting.yaml"}]


def test_an_agent_has_a_total_only_if_all_tasks_have_single_runs(tmp_path: Path) -> None:
    suite = make_suite(tmp_path)
    both = [run("good", "easy", 10, 90), run("good", "hard", 30), run("good", "easy", 45), run("good", "hard", 0)]
    one = [run("one", "easy", 9), run("one", "hard", 6)]
    peers = [run("peer", "easy", 90, runs=5, deviation=2.5), run("peer", "hard", 30), run("more", "other", 1)]
    found = cells(suite, *both, run("bad", "easy", 9), *peers, *one)
    assert found == {
        "good": ["0.50 [0.25, 0.75]", "67.5 (45 to 90)", "15 (0 to 30)", "4 of 4"],
        "bad": ["-", "9 (9 to 9)", "-", "1 of 4"],
        "peer": ["-", "90 ± 2.5 (mean of 5)", "30 (30 to 30)", "6"],
        "one": ["0.10", "9 (9 to 9)", "6 (6 to 6)", "2"],
    }


def test_the_total_is_the_interquartile_mean_of_shares_of_each_tasks_range(tmp_path: Path) -> None:
    suite = make_suite(tmp_path, tasks={"easy": [0, 100], "hard": [-10, -20]})
    runs = [run("good", "easy", 10), run("good", "easy", 20), run("good", "hard", -15), run("good", "hard", -1000)]
    scores = shares(suite, group_runs(suite, runs)["good"])
    assert scores is not None
    assert [each.tolist() for each in scores] == [[0.1, 0.2], [0.5, 99.0]]
    middle, low, high = summarize(scores)
    assert math.isclose(middle, (0.2 + 0.5) / 2)
    assert low < middle < high


def test_sources_stand_below_the_table_once(tmp_path: Path) -> None:
    suite = make_suite(tmp_path)
    runs = [run("peer", "easy", 1, seed=seed, source="https://example.org") for seed in range(3)]
    assert write_table(suite, group_runs(suite, runs)).count("- peer: https://example.org\n") == 1
