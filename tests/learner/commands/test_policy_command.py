from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from common.errors import CheckpointError, ConfigError
from learner.commands.policy_command import make_policy_parser, run_policy_command


def name_of_checkpoint(arguments: argparse.Namespace) -> Mapping[str, object]:
    if not (arguments.run / arguments.checkpoint).exists():
        raise CheckpointError(f"no {arguments.checkpoint}")
    return {"checkpoint": arguments.checkpoint, "score": 1.5}


def run(*words: str) -> int:
    parser = make_policy_parser("policy-any", "``policy-any``: names its checkpoint.", "  policy-any --run DIR\n")
    return run_policy_command(parser, [*words], name_of_checkpoint)


@pytest.mark.parametrize(
    ("present", "words", "expected"),
    [
        (["best", "final"], [], "best"),
        (["best", "final"], ["--checkpoint", "final"], "final"),
        (["final"], [], "final"),
        ([".best.old", "best", "final"], [], "best"),
    ],
)
def test_the_best_policy_is_used_or_the_final_one_if_there_is_no_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], present: list[str], words: list[str], expected: str
) -> None:
    for name in present:
        (tmp_path / name).mkdir()
    assert run("--run", str(tmp_path), *words) == 0
    told = capsys.readouterr()
    assert told.out == f"checkpoint: {expected}\nscore: 1.5\n"
    is_fallback = "best" not in present
    told_so = f"{tmp_path} has no best/, so the policy at the end of training, final/, is used" in told.err
    assert told_so == is_fallback


def test_the_option_best_uses_no_other_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "final").mkdir()
    assert run("--run", str(tmp_path), "--best") == CheckpointError.exit_code
    assert "policy-any: no best" in capsys.readouterr().err


def test_the_values_are_printed_as_one_json_object_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "best").mkdir()
    assert run("--run", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"checkpoint": "best", "score": 1.5}


@pytest.mark.parametrize("name", ["best", "final", "4000"])
def test_the_directory_of_a_checkpoint_names_both_the_run_and_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "meta.json").touch()
    monkeypatch.chdir(tmp_path / name)
    for place in (str(tmp_path / name), "."):
        assert run("--run", place) == 0
        assert run("--run", place, "--checkpoint", name) == 0
    assert capsys.readouterr().out == f"checkpoint: {name}\nscore: 1.5\n" * 4


def test_two_different_checkpoints_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "meta.json").touch()
    assert run("--run", str(tmp_path / "final"), "--best") == ConfigError.exit_code
    assert "names the checkpoint final, --checkpoint best another" in capsys.readouterr().err
