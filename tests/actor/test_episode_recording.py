from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actor import episode_recording
from actor.episode_recording import EpisodeRecording, make_directory
from actor.sampling.sampler import Sampler
from actor.stat import ActorCounters
from common.data import Array, Column, Items
from common.episode_files import read_episode
from common.errors import ConfigError
from common.parts import Parts
from tests.actor.acting import Acts, Kept, counting, env_config, make_parts
from tests.disks import Disk
from tests.parts import counting_schema, expected_rows

SECONDS = 60.0


def record(parts: Parts, rounds: int, directory: Path) -> EpisodeRecording:
    """Act for this many rounds, and write the episodes that end in them."""
    made = EpisodeRecording(directory, parts.rows)
    sampler = Sampler(parts, ActorCounters(), 7, recording=made)
    for _ in range(rounds):
        sampler.sample_and_push(parts.agent, Kept())
    sampler.flush(parts.agent, Kept())
    made.close(SECONDS)
    return made


def read_all(directory: Path) -> list[Items]:
    """The episodes of a directory; no other file may be there."""
    assert all(path.suffix == ".npz" for path in directory.iterdir())
    return [read_episode(path) for path in sorted(directory.iterdir())]


def rows_of_whole_episodes(tag: int, steps: int) -> list[Items]:
    """The rows of each episode that ends within the first ``steps`` steps of an environment."""
    rows = expected_rows(tag, steps)
    ends = np.flatnonzero(rows["final"]) + 1
    parts = {name: np.split(column, ends)[: len(ends)] for name, column in rows.items()}
    return [{name: parts[name][i] for name in parts} for i in range(len(ends))]


def assert_recorded(found: list[Items], rows: list[Items]) -> None:
    """The episodes are those of these rows, whatever their order."""
    by_begin = {tuple(episode["obs"][0].tolist()): episode for episode in found}
    assert len(by_begin) == len(found) == len(rows)
    for expected in rows:
        episode = by_begin[tuple(expected["obs"][0].tolist())]
        np.testing.assert_array_equal(episode["obs"], expected["obs"])
        for name in ("action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(episode[name], expected[name][:-1], err_msg=name)


def test_every_whole_episode_of_every_lane_is_a_file(tmp_path: Path) -> None:
    made = record(make_parts(counting(3)), 60, tmp_path)
    rows = [episode for tag in (7, 8, 9) for episode in rows_of_whole_episodes(tag, 60)]
    assert made.recorded == len(rows) > 9
    assert_recorded(read_all(tmp_path), rows)


def test_frames_are_recorded_without_their_stacks_and_an_agents_extras_are_not(tmp_path: Path) -> None:
    def answer(stacks: Array) -> Array:
        return ((stacks[:, -1, 1] + stacks[:, -1, 2]) % 3).astype(np.int64)

    config = env_config(frame_stack=4, info={"force": "float32[2]"})
    record(make_parts(counting(1), lambda spec: Acts(spec, answer), config=config), 30, tmp_path)
    found = read_all(tmp_path)
    assert_recorded(found, rows_of_whole_episodes(7, 30))
    assert found[0].keys() == {"obs", "action", "reward", "terminated", "truncated", "info/force"}


def test_an_episode_without_an_end_is_not_recorded(tmp_path: Path) -> None:
    """Its environment failed: rows of the lane begin another episode before the first has a final row."""
    made = EpisodeRecording(tmp_path, counting_schema())
    failed, whole = expected_rows(0, 3), expected_rows(1, 9)
    made.add({name: np.concatenate([failed[name], whole[name]]) for name in failed})
    made.close(SECONDS)
    assert_recorded(read_all(tmp_path), rows_of_whole_episodes(1, 9))


def test_recordings_into_one_directory_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for tag in (1, 2):
        made = EpisodeRecording(tmp_path, counting_schema())
        made.add(expected_rows(tag, 30))
        made.close(SECONDS)
    assert_recorded(read_all(tmp_path), [each for tag in (1, 2) for each in rows_of_whole_episodes(tag, 30)])


def test_episodes_whose_rows_had_no_room_are_not_recorded_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(episode_recording, "MAX_WAITING_BYTES", episode_recording.LEAST_BLOCK_BYTES + 1)
    rows = expected_rows(3, 400)
    begin = int(np.flatnonzero(rows["first"])[2])
    made = EpisodeRecording(tmp_path, counting_schema())
    with caplog.at_level(logging.WARNING):
        made.add({name: column[begin - 4 :] for name, column in rows.items()})  # As many as there is never room for.
        made.add({name: column[begin:][:20] for name, column in rows.items()})
        made.close(SECONDS)
    assert made.recorded == 2
    assert made.lost == int(rows["first"][begin - 4 :].sum())
    assert f"{made.lost} episodes could not be recorded in {tmp_path} so far: more than" in caplog.messages[0]


def test_an_episode_that_is_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = rows_of_whole_episodes(3, 10)[0]
    short = {name: column[[0, -1]] for name, column in long.items()}
    monkeypatch.setattr(episode_recording, "MAX_EPISODE_BYTES", sum(column.nbytes for column in short.values()))
    made = EpisodeRecording(tmp_path, counting_schema())
    for episode in (short, long, short):
        made.add(episode)
    made.close(SECONDS)
    assert (made.recorded, made.lost) == (2, 1)
    assert [len(episode["reward"]) for episode in read_all(tmp_path)] == [1, 1]


def test_unfinished_episodes_that_had_no_rows_for_longest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their lanes may belong to nobody any more, as those of a client that broke off."""
    whole = rows_of_whole_episodes(3, 10)[0]
    begin, rest = ({name: column[rows] for name, column in whole.items()} for rows in (slice(3), slice(3, None)))
    size = sum(column.nbytes for column in begin.values())
    monkeypatch.setattr(episode_recording, "MAX_OPEN_BYTES", 2 * size)
    made = EpisodeRecording(tmp_path, counting_schema())
    for lane in range(5):
        made.add(begin | {"lane": np.full_like(begin["lane"], lane)})
    for lane in range(5):
        made.add(rest | {"lane": np.full_like(rest["lane"], lane)})
    with caplog.at_level(logging.WARNING):
        made.close(SECONDS)
    assert (made.recorded, made.lost) == (2, 3)
    assert [len(episode["reward"]) for episode in read_all(tmp_path)] == [len(whole["reward"]) - 1] * 2


def test_acting_goes_on_while_the_disk_is_full(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    episodes = disk.path / "episodes"
    make_directory(episodes)
    disk.fill()
    with caplog.at_level(logging.WARNING):
        made = record(make_parts(counting(1)), 20, episodes)
    expected = rows_of_whole_episodes(7, 20)
    assert (made.recorded, made.lost) == (0, len(expected))
    assert "No space left on device" in caplog.messages[0]
    disk.clear()
    record(make_parts(counting(1)), 20, episodes)
    assert_recorded(read_all(episodes), expected)


def test_a_directory_in_which_nothing_can_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"--record .*file/episodes: expected a directory .* found: .*Not a directory"
    ):
        make_directory(tmp_path / "file" / "episodes")
    make_directory(tmp_path / "new" / "episodes")
    assert not any((tmp_path / "new" / "episodes").iterdir())


def test_an_episode_that_a_person_has_discarded_is_not_recorded(tmp_path: Path) -> None:
    rows = {name: np.concatenate([column] * 2) for name, column in rows_of_whole_episodes(7, 60)[0].items()}
    schema = counting_schema().plus(Column.of("info/discarded", np.bool_))
    last_step = len(rows["final"]) // 2 - 2
    rows["info/discarded"] = np.arange(len(rows["final"])) == last_step
    made = EpisodeRecording(tmp_path, schema)
    made.add(rows)
    made.close(SECONDS)
    assert (made.recorded, made.lost) == (1, 0)
    assert not read_all(tmp_path)[0]["info/discarded"].any()


def test_an_episode_that_cannot_be_written_harms_no_other_episode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rows_of_whole_episodes(7, 60)[0]
    made = EpisodeRecording(tmp_path, counting_schema())
    with caplog.at_level(logging.WARNING):
        made.add({name: column[-1:] for name, column in whole.items()} | {"first": np.ones(1, bool)})  # No step.
        made.add(whole)
        made.close(SECONDS)
    assert (made.recorded, made.lost) == (1, 1)
    assert "1 episodes could not be recorded" in caplog.messages[0]


def test_episodes_whose_rows_cannot_be_split_for_lack_of_memory_are_lost_and_later_ones_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    split, rows = episode_recording._split, rows_of_whole_episodes(7, 60)
    failing = iter([True])

    def fail_once(block: Items) -> Iterator[tuple[int, Items]]:
        if next(failing, False):
            raise MemoryError
        return split(block)

    monkeypatch.setattr(episode_recording, "_split", fail_once)
    made = EpisodeRecording(tmp_path, counting_schema())
    for episode in rows[:3]:
        made.add(episode)
    made.close(SECONDS)
    assert (made.recorded, made.lost) == (2, 1)
    assert "this process has no memory for their rows" in caplog.text


def test_rows_that_were_dropped_last_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_recording, "MAX_WAITING_BYTES", episode_recording.LEAST_BLOCK_BYTES - 1)
    rows = expected_rows(3, 60)
    made = EpisodeRecording(tmp_path, counting_schema())
    made.add(rows)
    made.close(SECONDS)
    assert (made.recorded, made.lost) == (0, int(rows["first"].sum()))
