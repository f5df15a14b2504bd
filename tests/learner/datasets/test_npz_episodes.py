from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.episode_files import write_episode
from common.errors import DatasetError, SchemaMismatchError
from tests.learner.datasets.robots import make_episode, read_dataset


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """Three episodes."""
    (tmp_path / "demos").mkdir()
    for number in range(3):
        write_episode(tmp_path / "demos" / f"{number}.npz", make_episode(number, 4 + number))
    return tmp_path / "demos"


def test_the_episodes_of_a_directory_come_in_the_order_of_their_names(demos: Path) -> None:
    (demos / ".3.npz.part").write_bytes(b"being written")
    (demos / "notes.txt").write_text("anything")
    found = read_dataset(demos)
    assert [len(rows["reward"]) for rows in found] == [5, 6, 7]
    for number, rows in enumerate(found):
        np.testing.assert_array_equal(rows["obs/front"], make_episode(number, 4 + number)["obs/front"])
        assert rows["final"].tolist() == [False] * (4 + number) + [True]


def test_one_file_is_a_dataset_too(demos: Path) -> None:
    assert len(read_dataset(demos / "1.npz")) == 1


def test_all_files_are_checked_before_the_first_row_is_given(demos: Path) -> None:
    wrong = make_episode(2, 4)
    write_episode(demos / "2.npz", wrong | {"obs/front": np.moveaxis(wrong["obs/front"], 1, -1)})
    given = []
    with pytest.raises(SchemaMismatchError, match=r"demos/2.npz: array 'obs/front': .*channels come last"):
        given += read_dataset(demos)
    (demos / "2.npz").write_bytes(b"not at all")
    with pytest.raises(DatasetError, match=r"demos/2.npz: expected an episode as an .npz file"):
        given += read_dataset(demos)
    assert given == []
