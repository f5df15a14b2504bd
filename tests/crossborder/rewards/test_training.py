from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import CheckpointError, DatasetError
from crossborder.rewards.classifier import load_classifier
from crossborder.rewards.labelled_pictures import LabelledEpisode, read_labelled
from crossborder.rewards.training import save_classifier, train_classifier
from tests.crossborder.rewards.classifiers import untrained
from tests.crossborder.rewards.drawings import SIDE, STEPS, draw, drawn_episode, write_drawings

torch.set_num_threads(1)


def test_a_classifier_learns_to_tell_success_in_pictures_that_it_has_not_seen(tmp_path: Path) -> None:
    list(write_drawings(tmp_path))
    trained = train_classifier(read_labelled([tmp_path]), steps=80)
    assert trained.facts.accuracy > 0.95
    assert trained.facts.pictures == {"camera": (3, SIDE, SIDE)}
    assert (trained.facts.successes, trained.facts.failures) == (8 * 3, 16 * STEPS - 8 * 3)
    random = np.random.default_rng(99)
    shown = np.stack([draw(at, random) for at in (0.0, 0.5, 1.0)])
    assert (trained.probabilities({"camera": shown}) > 0.5).tolist() == [False, False, True]


def test_training_repeats_itself_and_leaves_the_random_numbers_of_torch_alone() -> None:
    episodes = [labelled(seed, succeeds=seed % 2 == 0) for seed in range(4)]
    state = torch.get_rng_state()
    first, second = (train_classifier(episodes, steps=2, seed=3) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    for one, other in zip(first.net.parameters(), second.net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_written_classifier_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    classifier, path = untrained({"camera": (3, 16, 16)}), tmp_path / "reward.safetensors"
    save_classifier(classifier, path)
    assert load_classifier(path).facts == classifier.facts
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/reward\.safetensors: cannot be written"):
        save_classifier(untrained({"": (3, 16, 16)}), tmp_path / "file" / "reward.safetensors")


def labelled(seed: int, *, succeeds: bool) -> LabelledEpisode:
    columns = drawn_episode(seed, succeeds=succeeds)
    return LabelledEpisode({"camera": columns["obs/camera"][1:]}, columns["info/is_success"])


@pytest.mark.parametrize("successes", [0, 1])
def test_too_few_labels_are_refused(successes: int) -> None:
    episodes = [labelled(seed, succeeds=seed < successes) for seed in range(5)]
    with pytest.raises(DatasetError, match=rf"found {successes} with success among 5 episodes; record and label more"):
        train_classifier(episodes, steps=1)
