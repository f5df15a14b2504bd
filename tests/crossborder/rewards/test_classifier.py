from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from common.errors import CheckpointError
from crossborder.rewards.classifier import METADATA, SuccessNet, load_classifier
from crossborder.rewards.training import save_classifier
from tests.crossborder.rewards.classifiers import untrained


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 9), (40, 64, 3), (3, 128, 128), (2, 3, 24, 24)])
def test_pictures_of_any_size_and_order_of_axes_have_a_probability(shape: tuple[int, ...]) -> None:
    classifier = untrained({"one": shape, "other": (3, 16, 16)})
    pictures = {"one": np.zeros((5, *shape), np.uint8), "other": np.full((5, 3, 16, 16), 255, np.uint8)}
    found = classifier.probabilities(pictures)
    assert found.shape == (5,)
    assert found.dtype == np.float32
    assert ((found > 0) & (found < 1)).all()


def test_a_file_gives_the_probabilities_of_the_classifier_that_it_was_made_of(tmp_path: Path) -> None:
    classifier = untrained({"b": (3, 16, 16), "a": (20, 20)}, threshold=0.8)
    save_classifier(classifier, tmp_path / "reward.safetensors")
    read = load_classifier(tmp_path / "reward.safetensors")
    assert read.facts == classifier.facts
    random = np.random.default_rng(0)
    pictures = {key: random.integers(0, 256, (4, *shape), np.uint8) for key, shape in read.facts.pictures.items()}
    np.testing.assert_array_equal(read.probabilities(pictures), classifier.probabilities(pictures))


def test_a_file_that_is_missing_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "reward.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"expected the file of a reward classifier, found none \(did you mean"):
        load_classifier(tmp_path / "rewards.safetensors")


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "reward.safetensors"
    facts = untrained({"": (3, 16, 16)}).facts.model_dump_json()
    tensors = {name: tensor.contiguous() for name, tensor in SuccessNet({"": (3, 24, 24)}).state_dict().items()}
    for content, message in (
        (b"no safetensors file", "not a safetensors file"),
        (None, "found a safetensors file of something else"),
        ({METADATA: "{}"}, r"reward_classifier\.pictures: expected a value, found none"),
        ({METADATA: "[1"}, "cannot be read as a reward classifier"),
        ({METADATA: facts.replace("16,16", "2,2")}, "expected larger images"),
        ({METADATA: facts.replace("[3,16,16]", "[16,16,16]")}, "size mismatch"),
    ):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            save_file(tensors if content else {"w": torch.zeros(1)}, path, content)
        with pytest.raises(CheckpointError, match=message):
            load_classifier(path)
