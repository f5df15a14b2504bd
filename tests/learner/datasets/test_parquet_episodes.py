from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import DatasetError, SchemaMismatchError
from tests.learner.datasets.robots import make_episode, read_dataset, write_parquet


def with_final_row(number: int, steps: int) -> dict[str, Any]:
    """The columns of an episode whose last row holds the observation after the last action only."""
    episode = make_episode(number, steps)
    lists = {name: array.tolist() for name, array in episode.items()}
    columns = {name: values if "obs" in name else [*values, None] for name, values in lists.items()}
    return columns | {"final": [False] * steps + [True], "episode": [number] * (steps + 1)}


def test_episodes_with_final_rows_are_those_of_npz_files(tmp_path: Path) -> None:
    parts = [with_final_row(number, 3 + number) for number in range(3)]
    write_parquet(tmp_path / "a.parquet", {name: parts[0][name] + parts[1][name] for name in parts[0]})
    write_parquet(tmp_path / "b.parquet", parts[2])
    found = read_dataset(tmp_path)
    assert [len(rows["reward"]) for rows in found] == [4, 5, 6]
    for number, rows in enumerate(found):
        episode = make_episode(number, 3 + number)
        np.testing.assert_array_equal(rows["obs/front"], episode["obs/front"])
        np.testing.assert_array_equal(rows["action"][:-1], episode["action"])
        assert rows["terminated"][-2] == (number % 2 == 0)
        assert rows["truncated"][-2] == (number % 2 == 1)


def test_one_file_without_final_rows_is_a_dataset(tmp_path: Path) -> None:
    episode = {name: array[:4] for name, array in make_episode(0, 4).items()}
    write_parquet(tmp_path / "one.parquet", episode)
    (rows,) = read_dataset(tmp_path / "one.parquet")
    assert rows["obs/state"][:, 0].tolist() == [0, 1, 2, 3, 3]


def test_a_missing_column_is_named_with_the_file(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "one.parquet", {"obs": np.zeros((4, 2)), "action": np.zeros((4, 2)), "reward": np.zeros(4)}
    )
    with pytest.raises(SchemaMismatchError, match=r"one.parquet: expected an array 'obs/front'"):
        read_dataset(tmp_path)


def test_a_final_row_in_the_middle_of_an_episode_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one.parquet", with_final_row(0, 4) | {"final": [False, True, False, False, True]})
    with pytest.raises(DatasetError, match=r"one.parquet: column 'final': expected True in the last row"):
        read_dataset(tmp_path)


def test_a_final_row_may_be_marked_by_an_array_of_one_element_and_by_nothing_larger(tmp_path: Path) -> None:
    write_parquet(tmp_path / "one.parquet", with_final_row(0, 2) | {"final": [[False], [False], [True]]})
    (rows,) = read_dataset(tmp_path)
    assert len(rows["reward"]) == 3
    for values, found in ((["no", "no", "yes"], r"object \[\]"), ([[False, True]] * 3, r"bool \[2\]")):
        write_parquet(tmp_path / "one.parquet", with_final_row(0, 2) | {"final": values})
        message = rf"one.parquet: column 'final': expected True or False in each row, found {found}"
        with pytest.raises(DatasetError, match=message):
            read_dataset(tmp_path)


def test_an_episode_without_steps_is_refused(tmp_path: Path) -> None:
    whole, other = with_final_row(0, 4), with_final_row(1, 4)
    write_parquet(tmp_path / "one.parquet", {name: [*whole[name], other[name][-1]] for name in whole})
    with pytest.raises(DatasetError, match=r"one.parquet: .*at least one step, found only a final row"):
        read_dataset(tmp_path)
