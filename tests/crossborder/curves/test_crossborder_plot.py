from __future__ import annotations

import csv
from pathlib import Path

import pytest

from crossborder.curves import crossborder_plot
from tests.crossborder.curves.test_learning_curve import write_run


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of DQN, one of SAC that ends early, in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, agent, lr, scores in (
        ("dqn-0", "dqn", 0.1, (10, 20)),
        ("dqn-1", "dqn", 0.2, (20, 40)),
        ("sac-0", "sac", 0.1, (5, 6)),
        ("sac-1", "sac", 0.1, (5,)),
    ):
        config = {"name": agent, "agent": {"params": {"lr": lr}}, "env": {"params": {"id": "CartPole-v1"}}}
        rows = [f"{i * 100},{i},{i * 400},{score},{score / 10}" for i, score in enumerate(scores, 1)]
        write_run(tmp_path / "runs" / name, *rows, config=config)


def plot(*words: str) -> dict[str, list[tuple[float, ...]]]:
    """The points of each group."""
    assert crossborder_plot.main([*words, "--csv", "curves.csv"]) == 0
    found: dict[str, list[tuple[float, ...]]] = {}
    with Path("curves.csv").open(newline="") as file:
        for group, *values in list(csv.reader(file))[1:]:
            found.setdefault(group, []).append(tuple(map(float, values)))
    return found


def test_runs_are_grouped_by_the_name_of_their_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    found = plot("runs/dqn-0", "runs/dqn-1", "runs/sac-0")
    assert [(row[0], row[1], row[4]) for row in found["dqn"]] == [(400, 15, 2), (800, 30, 2)]
    assert found["sac"] == [(400, 5, 5, 5, 1), (800, 6, 6, 6, 1)]
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert "dqn: 30 [20, 40] at 800 environment steps, 2 runs\n" in capsys.readouterr().out


def test_a_glob_makes_a_group() -> None:
    found = plot("--group", "all=runs/*", "--group", f"second={Path.cwd()}/runs/*-1", "--over", "opt-steps")
    assert {name: (rows[0][0], rows[0][4]) for name, rows in found.items()} == {"all": (100, 4), "second": (100, 2)}


def test_a_directory_is_a_group_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/dqn-0")
    assert plot("--group", "here=.") == {"here": [(400, 10, 10, 10, 1), (800, 20, 20, 20, 1)]}


def test_a_run_that_is_named_twice_in_a_group_counts_once() -> None:
    """Two globs may match the same run, and a link to a run is the run."""
    Path("runs/latest").symlink_to("dqn-1")
    found = plot("runs/dqn-0", "runs/dqn-0/", "runs/latest", "--group", "dqn=runs/dqn-*", "--group", "one=runs/dqn-1")
    assert {name: (rows[0][1], rows[0][4]) for name, rows in found.items()} == {"dqn": (15, 2), "one": (20, 1)}


def test_runs_are_grouped_by_a_value_of_their_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    found = plot("runs/dqn-0", "runs/dqn-1", "--by", "agent.params.lr", "--record", "loss", "--over", "seconds")
    assert found["agent.params.lr 0.1"] == [(1, 1, 1, 1, 1), (2, 2, 2, 2, 1)]
    assert crossborder_plot.main(["runs/dqn-0", "--by", "agent.params.units"]) == 2
    assert "--by agent.params.units: runs/dqn-0/config.yaml has no such value" in capsys.readouterr().err


def test_a_group_names_its_shortest_run_and_may_hold_that_runs_last_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[0] for row in plot("runs/sac-0", "runs/sac-1")["sac"]] == [400]
    assert "it ends with runs/sac-1, the longest run has 800 (--hold" in capsys.readouterr().out
    assert [row[:2] for row in plot("runs/sac-0", "runs/sac-1", "--hold")["sac"]] == [(400, 5), (800, 5.5)]


def test_scores_are_shares_of_a_range() -> None:
    assert [row[1] for row in plot("runs/sac-0", "--range", "CartPole-v1=5:7")["sac"]] == [0, 0.5]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "expected directories of runs, found none: name them"),
        (["runs/dqn-2"], "runs/dqn-2/metrics.csv: cannot be read"),
        (["--group", "x=runs/ppo-*"], "--group x=runs/ppo-*: expected directories of runs, found none"),
        (["--group", "x=/"], "/metrics.csv: cannot be read"),
        (["--group", "x=runs/**x"], "--group x=runs/**x: expected directories of runs, found none"),
        (["words"], "words/metrics.csv: column eval_reward: expected numbers, found 'high'"),
        (["bytes"], "bytes/metrics.csv: expected a CSV file, found another"),
        (["runs/dqn-0", "--record", "los"], "did you mean 'loss'?"),
        (["runs/dqn-0", "--range", "CartPole-v0=0:1"], "--range CartPole-v0: expected the task of a run (did you mean"),
    ],
)
def test_a_mistake_ends_the_command_with_an_error_that_names_it(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("words"), "100,1,400,high,0.5")
    (write_run(Path("bytes")) / "metrics.csv").write_bytes(b"opt_steps\n\xff")
    assert crossborder_plot.main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--group", "runs/*"), ("--range", "A=1"), ("--range", "A=1:1"), ("--range", "A=nan:1")]
)
def test_an_error_about_a_wrong_value_shows_the_expected_form(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        crossborder_plot.main([option, value])
    assert "expected " in capsys.readouterr().err


def test_trials_that_a_sweep_ended_early_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for trial, seconds in ((0, 2), (1, 1), (2, 2)):
        rows = [f"{i * 100},{i},{i * 400 + trial},{i},0" for i in range(1, seconds + 1)]
        write_run(tmp_path / "sweep" / "trials" / f"{trial:04d}" / "seed-0", *rows, config={"name": "trial"})
    (tmp_path / "sweep" / "results.csv").write_text("trial,state,score\n0,complete,2\n1,pruned,1\n2,complete,2\n")
    trials = [f"sweep/trials/{trial:04d}/seed-0" for trial in range(3)]
    assert {row[4] for row in plot(*trials)["trial"]} == {2}
    assert "without 1 runs of trials that their sweep ended early" in capsys.readouterr().out
    assert crossborder_plot.main([trials[1]]) == 2
