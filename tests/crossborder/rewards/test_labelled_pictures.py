from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.data import Items
from common.episode_files import write_episode
from common.errors import DatasetError
from crossborder.rewards.labelled_pictures import read_labelled
from tests.crossborder.rewards.drawings import SIDE, STEPS, drawn_episode


def written(directory: Path, *episodes: Items) -> Path:
    for i, columns in enumerate(episodes):
        write_episode(directory / f"{i}.npz", columns)
    return directory


def test_each_step_has_the_picture_after_it_and_its_label(tmp_path: Path) -> None:
    columns = drawn_episode(0, succeeds=True)
    (episode,) = read_labelled([written(tmp_path, columns)])
    assert list(episode.pictures) == ["camera"]
    np.testing.assert_array_equal(episode.pictures["camera"], columns["obs/camera"][1:])
    np.testing.assert_array_equal(episode.is_success, np.arange(STEPS) >= STEPS - 3)
    assert episode.succeeds


def test_without_labels_a_reward_above_zero_is_a_success(tmp_path: Path) -> None:
    columns = drawn_episode(0, succeeds=True)
    del columns["info/is_success"]
    columns["reward"] = np.linspace(-1, 1, STEPS, dtype=np.float32)
    (episode,) = read_labelled([written(tmp_path, columns)])
    np.testing.assert_array_equal(episode.is_success, columns["reward"] > 0)


def test_episodes_that_a_person_discarded_are_left_out(tmp_path: Path) -> None:
    kept, discarded = drawn_episode(0, succeeds=True), drawn_episode(1, succeeds=True)
    discarded["info/discarded"] = np.arange(STEPS) == STEPS - 1
    assert len(read_labelled([written(tmp_path, kept, discarded)])) == 1
    (tmp_path / "0.npz").unlink()
    with pytest.raises(DatasetError, match="found only discarded ones"):
        read_labelled([tmp_path])


def test_the_keys_choose_among_several_cameras(tmp_path: Path) -> None:
    columns = drawn_episode(0, succeeds=True) | {"obs/wrist": np.zeros((STEPS + 1, 3, 16, 16), np.uint8)}
    place = written(tmp_path, columns)
    assert list(read_labelled([place])[0].pictures) == ["camera", "wrist"]
    assert list(read_labelled([place], ["wrist"])[0].pictures) == ["wrist"]
    with pytest.raises(DatasetError, match=r"0\.npz: expected a picture 'obs/wirst' of uint8 \(did you mean 'wrist'"):
        read_labelled([place], ["wirst"])


def test_an_observation_may_be_a_single_picture(tmp_path: Path) -> None:
    columns = drawn_episode(0, succeeds=True, camera="obs")
    del columns["obs/joints"]
    assert list(read_labelled([written(tmp_path, columns)])[0].pictures) == [""]


def test_a_file_with_other_pictures_than_the_first_is_named(tmp_path: Path) -> None:
    other = drawn_episode(1, succeeds=True)
    other["obs/camera"] = other["obs/camera"][:, :, :16, :16]
    message = (
        rf"1\.npz: array 'obs/camera': expected pictures of uint8 \[3, {SIDE}, {SIDE}\], found uint8 \[3, 16, 16\]"
    )
    with pytest.raises(DatasetError, match=message):
        read_labelled([written(tmp_path, drawn_episode(0, succeeds=True), other)])


def test_a_directory_without_episodes_and_one_without_pictures_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"expected a directory of \.npz episodes, found none"):
        read_labelled([tmp_path / "nowhere"])
    columns = drawn_episode(0, succeeds=True)
    del columns["obs/camera"]
    with pytest.raises(DatasetError, match=r"0\.npz: expected observations with pictures of uint8, found none"):
        read_labelled([written(tmp_path, columns)])
