"""A replay's copy on a device gives the batches that the replay gives; the device here is the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from common.config.replay_config import PrioritizedConfig
from common.data import Array, Items
from common.errors import ConfigError
from common.process.clocks import Deadline
from learner.loop.resident import ResidentReplay
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.writer import ReplayWriter
from tests.conftest import PATIENCE, wait_for
from tests.frames import check_stacks
from tests.learner.replay.memories import CAPACITY, make, next_stacked, open_stacked, rows, writing

CPU = torch.device("cpu")


def arrays(tensors: dict[str, torch.Tensor]) -> Items:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def test_it_gives_the_batches_of_the_other_one_through_many_rounds_of_rows_and_frames(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True, capacity=40, frames=100)
    writer = ReplayWriter(memory)
    plain, other = (PrioritizedReplay(memory, PrioritizedConfig(), seed=3, n_opts=1000) for _ in range(2))
    resident = ResidentReplay(other, memory, CPU)
    for seq in range(1, 60):
        writer.append(next_stacked(memory, 1 + seq % 4), 1 + seq % 4, incarnation=1, seq=seq)
        expected, found = plain.batch(8), arrays(resident.tensors(8))
        assert {name: column.tolist() for name, column in found.items()} == {
            name: column.tolist() for name, column in expected.items()
        }
        for replay in (plain, resident):
            replay.update_priority(expected["index"], np.arange(8.0))
    assert memory.committed > 3 * 40
    assert (resident.inserted, resident.sampled, len(resident)) == (plain.inserted, plain.sampled, len(plain))


def test_no_torn_stack_is_ever_given_while_another_process_overwrites_frames(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True)
    with writing(tmp_path, "stacked"):
        wait_for(lambda: len(memory) > 200, "the first rows")
        resident, before = ResidentReplay(UniformReplay(memory, seed=0), memory, CPU), memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 200 or memory.committed < before + 20 * CAPACITY:  # Frames are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            check_stacks(arrays(resident.tensors(64)))


def test_arrays_can_be_had_as_well(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True)
    ReplayWriter(memory).append(next_stacked(memory, 20), 20, incarnation=1, seq=1)
    resident = ResidentReplay(UniformReplay(memory, seed=0), memory, CPU)
    check_stacks(resident.batch(8))
    assert resident.sampled == 8


def test_excluded_items_are_not_drawn_and_the_indices_of_the_last_batch_are_known(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=1, seq=1)
    replay = UniformReplay(memory, 0)
    resident = ResidentReplay(replay, memory, CPU)
    memory.exclude(np.array([3, 8, 4]))
    drawn = resident.tensors(200)["n"].tolist()
    assert set(drawn) == {0, 1, 2, 5, 6, 7, 9}
    assert replay.last_drawn.tolist() == drawn


class AllInTurn(SharedReplay):
    """A buffer of a user's own that chooses all items, excluded ones too, and gives each a column ``twice``."""

    _next = 0

    def draw(self, size: int) -> tuple[Array, Items]:
        first, end = self._reader.bounds()
        index = first + (self._next + np.arange(size)) % (end - first)
        self._next += size
        return index, {"index": index.copy(), "twice": 2 * index}


def test_excluded_items_are_not_drawn_from_a_buffer_of_a_users_own(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=1, seq=1)
    memory.exclude(np.array([3, 8, 4]))
    replay = AllInTurn(memory, 0)

    def check(batch: Items) -> None:
        drawn = batch["n"].tolist()
        assert set(drawn) == {0, 1, 2, 5, 6, 7, 9}
        assert batch["index"].tolist() == replay.last_drawn.tolist() == drawn
        assert batch["twice"].tolist() == [2 * n for n in drawn]

    check(arrays(ResidentReplay(replay, memory, CPU).tensors(200)))
    check(replay.batch(200))


def test_nothing_to_draw_from_is_an_error(tmp_path: Path) -> None:
    memory = open_stacked(tmp_path, create=True)
    with pytest.raises(IndexError, match="nothing to draw from"):
        ResidentReplay(UniformReplay(memory, seed=0), memory, CPU).tensors(1)


def test_a_device_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: ReplayMemory = open_stacked(tmp_path, create=True)

    def no_room(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty_like", no_room)
    with pytest.raises(ConfigError, match=r"replay.resident: expected room for \d+ bytes on cpu, found too little"):
        ResidentReplay(UniformReplay(memory, seed=0), memory, CPU)
