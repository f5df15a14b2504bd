"""Words that processes write for each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from learner.shared.control import ControlBlock


def test_words_written_through_one_mapping_are_read_through_another(tmp_path: Path) -> None:
    written = ControlBlock.open(tmp_path, create=True)
    read = ControlBlock.open(tmp_path)
    written.sampled = 2**40 + 1
    written.return_mean = -1.5
    written.ratio_slots[1].samples_per_insert = 0.25
    assert read.sampled == 2**40 + 1
    assert read.return_mean == -1.5
    assert [slot.samples_per_insert for slot in read.ratio_slots] == [0.0, 0.25]
    assert read.stopping == 0


def test_a_block_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    ControlBlock.open(tmp_path, create=True)
    with pytest.raises(TypeError, match="read-only"):
        ControlBlock.open(tmp_path, writable=False).stopping = 1


def test_a_trainer_that_begins_forgets_the_requests_of_the_one_before_and_keeps_counters(tmp_path: Path) -> None:
    block = ControlBlock.open(tmp_path, create=True)
    block.stopping = block.trainer_waits_for = block.release_at = block.actors_online = block.trainer_beats = 7
    block.batches, block.divergences = 30, 2
    block.start(incarnation=3, sampled=640)
    assert (block.incarnation, block.sampled, block.batches, block.divergences) == (3, 640, 30, 2)
    assert block.stopping == block.trainer_waits_for == block.release_at == 0
    assert block.actors_online == block.trainer_beats == 0


def test_means_of_episodes_are_recorded_once_there_are_episodes_that_have_them(tmp_path: Path) -> None:
    block = ControlBlock.open(tmp_path, create=True)
    assert block.episode_record() == {}
    block.episodes, block.return_mean, block.length_mean = 2, 1.5, 7.0
    assert block.episode_record() == {"train_return": 1.5, "train_length": 7.0}
    block.success_episodes, block.success_mean = 1, 0.5
    assert block.episode_record() == {"train_return": 1.5, "train_length": 7.0, "train_success": 0.5}
