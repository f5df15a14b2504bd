from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import CheckpointError
from crossborder.rewards.classifier import load_classifier
from crossborder.rewards.classifier_file import save_classifier
from tests.crossborder.rewards.classifiers import untrained


def test_a_written_classifier_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    classifier, path = untrained({"camera": (3, 16, 16)}), tmp_path / "models" / "reward.safetensors"
    save_classifier(classifier, path)
    assert load_classifier(path).facts == classifier.facts
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/reward\.safetensors: cannot be written"):
        save_classifier(untrained({"": (3, 16, 16)}), tmp_path / "file" / "reward.safetensors")
