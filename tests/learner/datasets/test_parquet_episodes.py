from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from common import episode_files
from common.errors import DatasetError, SchemaMismatchError
from learner.datasets.parquet_episodes import StepTable
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("action", [0.5] * 6, r"array 'action': expected the shape \[.*\] in each step, found \[6\]"),
        ("terminated", [False, False], r"array 'terminated': expected a number for each step, found \[2\]"),
    ],
)
def test_a_later_episode_of_other_shapes_is_refused(tmp_path: Path, name: str, value: list[Any], message: str) -> None:
    first, second = with_final_row(0, 3), with_final_row(1, 3)
    second[name] = [value] * 4
    if name == "terminated":
        first[name] = [value] * 4
    write_parquet(tmp_path / "one.parquet", {key: first[key] + second[key] for key in first})
    with pytest.raises(DatasetError, match=message):
        read_dataset(tmp_path)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([0.0]), pa.array([1.0])], ["reward", "reward"]), tmp_path / "a.parquet"
    )
    with pytest.raises(DatasetError, match=r"a.parquet: expected each column once, found 'reward' again"):
        StepTable(tmp_path / "a.parquet")


def test_an_episode_without_steps_is_refused(tmp_path: Path) -> None:
    whole, other = with_final_row(0, 4), with_final_row(1, 4)
    write_parquet(tmp_path / "one.parquet", {name: [*whole[name], other[name][-1]] for name in whole})
    with pytest.raises(DatasetError, match=r"one.parquet: .*at least one step, found only a final row"):
        read_dataset(tmp_path)


def write(path: Path, **columns: Any) -> StepTable:
    write_parquet(path / "steps.parquet", columns, row_group_size=3)
    return StepTable(path / "steps.parquet")


def test_each_episode_is_read_from_the_pieces_of_the_file(tmp_path: Path) -> None:
    numbers = np.repeat([5, 2, 9], [4, 1, 6])
    table = write(tmp_path, episode=numbers, x=np.arange(22).reshape(11, 2))
    found = {episode.number: table.array(rows, "x")[:, 0].tolist() for episode, rows in table.read(["x"])}
    assert found == {5: [0, 2, 4, 6], 2: [8], 9: [10, 12, 14, 16, 18, 20]}
    assert str(table.headers(["x"])["x"]) == "int64 [11, 2]"


def test_a_file_without_numbers_is_one_episode(tmp_path: Path) -> None:
    ((episode, rows),) = write(tmp_path, x=np.zeros(7)).read(["x"])
    assert (episode.number, len(rows)) == (0, 7)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"episode": [0, 1, 0]}, "column 'episode': expected the rows of episode 0 in one piece"),
        ({"episode": [0, None, 1]}, "column 'episode': expected a value in each row, found null"),
        ({"episode": ["a", "a", "b"]}, r"column 'episode': expected a whole number in each row, found object \[\]"),
        ({"episode": [[0, 1], [0, 1]]}, r"column 'episode': expected a whole number in each row, found int64 \[2\]"),
        ({"x": np.zeros(0)}, "expected steps, found none"),
    ],
)
def test_rows_that_are_no_episodes_are_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=rf"steps.parquet: {message}"):
        write(tmp_path, **columns)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0], [3.0]], "expected lists of one length, found 1, 2"),
        ([[1.0], None], "expected lists of one length, found null"),
        ([1.0, None], "expected a value in each row, found null"),
    ],
)
def test_values_of_which_no_array_can_be_made_are_named(tmp_path: Path, values: list[Any], message: str) -> None:
    table = write(tmp_path, x=values)
    ((_, rows),) = table.read(["x"])
    with pytest.raises(DatasetError, match=rf"steps.parquet: column 'x': {message}"):
        table.array(rows, "x")


def test_a_file_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_bytes(b"not at all")
    with pytest.raises(DatasetError, match=r"steps.parquet: expected a parquet file, which cannot be read"):
        StepTable(tmp_path / "steps.parquet")


def test_a_small_file_of_very_many_values_is_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_files, "SMALL_BYTES", 1 << 20)
    write_parquet(tmp_path / "a.parquet", {"reward": np.random.default_rng(0).random(200_000)})
    StepTable(tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", {"reward": np.zeros(200_000)})
    with pytest.raises(DatasetError, match=r"b.parquet: expected contents of at most 100 times .* found 1600000 bytes"):
        StepTable(tmp_path / "b.parquet")


def test_lists_of_one_repeated_value_count_with_their_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_files, "SMALL_BYTES", 1 << 20)
    write_parquet(tmp_path / "a.parquet", {"obs": np.zeros((2, 100_000))})
    with pytest.raises(DatasetError, match="found 1600000 bytes"):
        StepTable(tmp_path / "a.parquet")


def test_a_picture_that_is_stored_once_for_all_rows_is_refused_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.episode_files.SMALL_BYTES", 1 << 20)
    columns = {"camera": [b"x" * (1 << 16)] * 4000}
    write_parquet(tmp_path / "a.parquet", columns, dictionary_pagesize_limit=1 << 20)
    table = StepTable(tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match="expected contents of at most 100 times the file's own"):
        [*table.read(["camera"])]
