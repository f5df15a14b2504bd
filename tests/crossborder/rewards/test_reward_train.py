from __future__ import annotations

from pathlib import Path

import pytest

from crossborder.rewards import reward_train
from crossborder.rewards.classifier import load_classifier
from tests.crossborder.rewards.drawings import write_drawings


def test_the_command_writes_a_classifier_and_says_how_good_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list(write_drawings(tmp_path / "labelled", n=6))
    path = tmp_path / "reward.safetensors"
    words = ["--dataset", str(tmp_path / "labelled"), "--output", str(path), "--steps", "3", "--threshold", "0.7"]
    assert reward_train.main(words) == 0
    facts = load_classifier(path).facts
    assert facts.threshold == 0.7
    told = capsys.readouterr().out
    assert (
        f"learnt from {facts.successes} pictures of success and {facts.failures} of failure: camera [3, 24, 24]" in told
    )
    assert f"accuracy {facts.accuracy:.1%}" in told
    assert f"written: {path}" in told


def test_a_directory_without_episodes_ends_it_with_the_code_of_datasets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reward_train.main(["--dataset", str(tmp_path), "--output", str(tmp_path / "out")]) == 14
    assert "expected a directory of .npz episodes, found none" in capsys.readouterr().err


def test_a_threshold_is_between_0_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reward_train.main(["--dataset", "x", "--output", "y", "--threshold", "1.5"])
    assert "expected a number between 0 and 1, found '1.5'" in capsys.readouterr().err
