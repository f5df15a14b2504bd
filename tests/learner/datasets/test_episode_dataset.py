from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common.episode_files import write_episode
from common.errors import DatasetError, SchemaMismatchError
from learner.datasets.loading import load_dataset
from learner.datasets.opening import open_dataset
from learner.replay.memory import ReplayMemory
from learner.replay.value_rules import ValueRules
from tests.learner.datasets.robots import make_episode, read_dataset, robot_parts, write_parquet


def test_a_value_outside_of_its_bounds_is_named_with_its_file_and_step(tmp_path: Path) -> None:
    (tmp_path / "demos").mkdir()
    for number in range(2):
        episode = make_episode(number, 5)
        episode["action"][3, 1] = -2 * number
        write_episode(tmp_path / "demos" / f"{number}.npz", episode)
    parts = robot_parts()
    memory = ReplayMemory(tmp_path / "replay", parts.schema, 50, create=True)
    message = r"column 'action': expected -1 to 1, found -2 in step 3 of .*demos/1.npz"
    with open_dataset(str(tmp_path / "demos")) as dataset, pytest.raises(DatasetError, match=message):
        load_dataset(dataset, parts, memory, ValueRules(parts.schema, {}))


@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=["a number", "an array of one number"])
def test_steps_that_are_left_out_are_counted_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shape: tuple[int, ...]
) -> None:
    """The only action of an episode of one frame has no observation after it, so it is no step."""
    episode = make_episode(1, 3)
    episode["reward"] = episode["reward"].reshape(shape)
    write_parquet(tmp_path / "demos" / "0.parquet", {name: array[:1] for name, array in episode.items()})
    write_parquet(tmp_path / "demos" / "1.parquet", {name: array[:3] for name, array in episode.items()})
    assert [len(rows["reward"]) for rows in read_dataset(tmp_path / "demos")] == [3]
    (message,) = caplog.messages
    assert "2 episodes did not terminate" in message
    assert message.endswith("left out, with rewards of up to 1")


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
