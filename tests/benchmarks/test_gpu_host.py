"""The trial of a GPU host, rehearsed at a 64th of its size without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_host import page, wheels
from benchmarks.gpu_host.__main__ import PARTS, Report, run_part
from benchmarks.gpu_host.host import read_dmon
from benchmarks.gpu_host.part import Budget
from benchmarks.gpu_host.solving import Run
from learner.commands import learner_server
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]

MINUTES = 20
"""Far more than it takes, also on a machine that does much else."""

DMON = """\
# gpu     sm    mem    enc    dec    jpg    ofa  rxpci  txpci
# Idx      %      %      %      %      %      %   MB/s   MB/s
    0     40      8      0      0      -      -    100      -
    0     60     10      0      0      -      -    300      -
"""


def rehearse(directory: Path, *parts: str) -> dict[str, list[dict[str, Any]]]:
    """The results of a rehearsal, by part; each part ends as soon as it is done.

    Args:
        directory: for its file.
        parts: of the trial.
    """
    out = directory / "trial.jsonl"
    options = ["--share", "64", "--device", "cpu", "--minutes", str(MINUTES), "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.gpu_host", *parts, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for result in page.read_results(out):
        found.setdefault(result["part"], []).append(result)
    assert found.keys() == set(parts)
    assert all(results[-1]["ended"] == "complete" for results in found.values()), done.stdout
    return found


@pytest.mark.figures
def test_a_task_is_trained_until_it_can_be_said_how_fast(tmp_path: Path) -> None:
    result = rehearse(tmp_path, "pong")["pong"][0]
    assert result["task"] == "pong"
    assert not result["reached"]
    assert result["opt steps"] > 0
    assert result["steps"] >= result["opt steps/s"] > 0
    assert result["card"] == "none" or result["driver"] != "none"


def test_the_other_task_of_a_rehearsal_is_a_run_that_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = list[list[str]]()
    monkeypatch.chdir(ROOT)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", commands.append)
        Run("humanoid", Budget(60.0, "cpu", 64), tmp_path / "run")
    ((_python, _m, _learner, *words),) = commands
    assert learner_server.main([*words, "--check"]) == 0, capsys.readouterr().err


@pytest.mark.figures
def test_ranks_rates_and_physics_are_measured_without_a_gpu_too(tmp_path: Path) -> None:
    found = rehearse(tmp_path, "nccl", "physics", "rates")
    assert found["nccl"][0]["furthest"] == 0, "a mean over one rank is its own gradient"
    assert [result["steps/s alone"] > 0 for result in found["physics"][:-1]] == [True, True]
    assert [result["kind"] for result in found["rates"][:-1]] == ["sac"]
    assert all(result["arriving/s"] > 0 for result in found["rates"][:-1])


def test_a_part_that_is_not_done_in_time_is_stopped_and_its_lines_count(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\nprint('{\"begun\": 1}')\ntime.sleep(600)\n")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        assert run_part(("endless",), 10.0, lines.append) == "out of time"
        assert run_part(("no_such_module",), 60.0, lines.append) == "broken: exit code 1"
    assert lines[0] == '{"begun": 1}'
    assert "No module named no_such_module" in lines[-1]


def test_results_are_written_as_they_come_and_the_rest_is_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(tmp_path / "trial.jsonl", {"card": "a card"})
    for line in ('{"steps": 3}', "{no JSON", "100 steps"):
        report.take("pong", line)
    assert json.loads((tmp_path / "trial.jsonl").read_text()) == {"part": "pong", "card": "a card", "steps": 3}
    assert [line.rpartition("] ")[2] for line in capsys.readouterr().out.splitlines()] == [
        '{"steps": 3}',
        "{no JSON",
        "100 steps",
    ]


def test_the_means_of_what_nvidia_smi_prints() -> None:
    assert read_dmon(DMON) == {"GPU busy %": 50, "GPU memory busy %": 9, "PCIe in MB/s": 200}
    assert read_dmon("") == {}


def test_tables_and_a_picture_are_made_of_the_results(tmp_path: Path) -> None:
    host = {"card": "H", "driver": "1", "torch": "2", "processor": "P", "cores": 16, "date": "D", "device": "cuda"}
    curve = [[10.0, 100.0, -21.0], [20.0, 300.0, 18.0]]
    results = [
        {"part": "pong", **host, "share": 1, "task": "pong", "reached": True, "seconds": 150.25, "curve": curve},
        {"part": "pong", **host, "share": 1, "ended": "complete", "seconds": 151.0},
    ]
    tables = page.write_tables(results)
    assert "H, driver 1, torch 2, 16 cores of P, device cuda, D; complete" in tables
    assert "| task | reached | seconds |\n| --- | --- | --- |\n| pong | True | 150 |" in tables
    page.draw_curves(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_wheels_to_carry_have_the_versions_that_are_tested_here() -> None:
    names = wheels.read_names()
    assert f"gymnasium=={version('gymnasium')}" in names
    assert "sbx-rl" in names, "not installed here: the newest"


def test_the_parts_of_a_trial_fit_into_nine_minutes() -> None:
    assert sum(part.minutes for part in PARTS.values()) == pytest.approx(9)
