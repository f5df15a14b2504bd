from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from crossborder.curves.learning_curve import read_points
from crossborder.sweeps import crossborder_benchmark
from crossborder.sweeps.suite_results import read_runs
from learner.storage.rundir import read_identity
from tests.conftest import Command, wait_for
from tests.crossborder.sweeps.suites import case, write_suite
from tests.crossborder.sweeps.worth import GATE, gate_of

Start = Callable[..., Command]


def test_a_suite_leads_to_a_table_and_a_picture_beside_published_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = '{"agent": "peer", "task": "easy", "curve": [[30, 45.0]], "runs": 5, "source": "https://example.org"}\n'
    (tmp_path / "peers.jsonl").write_text(published)
    words = [
        str(write_suite(tmp_path, seeds=[0], published=["peers.jsonl"])),
        "--dir",
        str(tmp_path / "suite"),
        "--jobs",
        "2",
    ]
    for words_now in (words, [*words, "--runs", "0"]):
        assert crossborder_benchmark.main(words_now) == 0
        told = capsys.readouterr().out
        assert told.splitlines()[2:5] == [
            "| good | 1.00 | 90 (90 to 90) | 60 (60 to 60) | 2 of 2 |",
            "| bad | 0.17 | 30 (30 to 30) | 0 (0 to 0) | 2 of 2 |",
            "| peer | - | 45 (mean of 5) | - | 5 |",
        ]
        assert told.startswith((tmp_path / "suite" / "table.md").read_text())
    assert (tmp_path / "suite" / "picture.png").exists()
    runs = read_runs(tmp_path / "suite" / "results.jsonl")
    assert [(run.agent, run.task, run.seed, run.curve[-1][1]) for run in runs[:3]] == [
        ("good", "easy", 0, 90),
        ("good", "hard", 0, 60),
        ("bad", "easy", 0, 30),
    ]


@pytest.mark.parametrize(
    ("signalled", "number", "code"),
    [(Command.signal, signal.SIGKILL, -9), (Command.signal_another_thread, signal.SIGTERM, 143)],
)
def test_a_suite_that_is_killed_goes_on_and_runs_no_finished_run_again(
    tmp_path: Path, start: Start, signalled: Callable[[Command, int], None], number: int, code: int
) -> None:
    gated = [case(name, "easy", worth, **{GATE: str(tmp_path / "gate")}) for name, worth in (("a", 1.0), ("b", 2.0))]
    path = write_suite(tmp_path, cases=gated, seeds=[0])
    words = [str(path), "--dir", str(tmp_path / "suite")]
    runs = [tmp_path / "suite" / name / "easy" / "trials" / "0000" / "seed-0" for name in "ab"]
    gate_of(tmp_path / "gate", 1.0).touch()
    command = start("crossborder-benchmark", *words)
    wait_for(lambda: read_points(runs[1]), "the second run's first evaluation")
    signalled(command, number)
    assert command.wait() == code
    assert [run.agent for run in read_runs(tmp_path / "suite" / "results.jsonl")] == ["a"]
    gate_of(tmp_path / "gate", 2.0).touch()
    assert start("crossborder-benchmark", *words).wait() == 0
    assert [run.agent for run in read_runs(tmp_path / "suite" / "results.jsonl")] == ["a", "b"]
    assert [read_identity(run).is_resumed for run in runs] == [False, True]


def test_results_that_cannot_be_written_are_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite" / "table.md").mkdir(parents=True)
    words = [str(write_suite(tmp_path)), "--dir", str(tmp_path / "suite"), "--runs", "0"]
    assert crossborder_benchmark.main(words) == 4
    told = f"crossborder-benchmark: {tmp_path / 'suite'}: cannot be written: Is a directory"
    assert told in capsys.readouterr().err


def test_the_check_finds_a_wrong_setting_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert crossborder_benchmark.main([str(write_suite(tmp_path)), "--check"]) == 0
    assert "tiny.yaml: good. 8 runs" in capsys.readouterr().out
    wrong = write_suite(tmp_path, fixed={"evaluator.params.wort": 1})
    assert crossborder_benchmark.main([str(wrong), "--check"]) == 2
    assert (
        "benchmark: good, easy: evaluator.params.wort: unknown parameter (did you mean 'worth'?)"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "suites").exists()


def test_the_check_reads_the_files_of_published_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_suite(tmp_path, published=["peers.jsonl"])
    assert crossborder_benchmark.main([str(path), "--check"]) == 2
    assert "peers.jsonl: expected a run in each line" in capsys.readouterr().err
    (tmp_path / "peers.jsonl").touch()
    assert crossborder_benchmark.main([str(path), "--check"]) == 0
