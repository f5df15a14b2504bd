"""A replay's copy on a device gives the batches that the replay gives."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from common.config.replay_config import PrioritizedConfig
from common.data import Array, Items
from common.errors import ConfigError
from common.process.clocks import Deadline
from learner.loop.resident import ResidentReplay
from learner.replay.interventions import PrioritizedInterventions
from learner.replay.memory import ReplayMemory
from learner.replay.mixed_replay import MixedReplay, Source
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.reader import NothingToDrawError
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.view import View
from learner.views.items import SelfContained
from learner.views.sequences import Sequences
from learner.views.transitions import Transitions
from tests.conftest import PATIENCE, wait_for
from tests.devices import DEVICES
from tests.learner.replay.memories import CAPACITY, WIDE, check_wide, make, open_linked, rows, writing
from tests.learner.replay.memories import SCHEMA as ITEMS
from tests.learner.replay.test_reader import Steps
from tests.learner.views.lanes import SCHEMA, WITH_INTERVENTIONS, Lanes

CPU = torch.device("cpu")


def arrays(tensors: dict[str, torch.Tensor]) -> Items:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def check_same(found: Items, expected: Items) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)
        assert found[name].dtype == column.dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "view",
    [
        Transitions(SCHEMA),
        Transitions(SCHEMA, 3, 0.9, n=2),
        Sequences(SCHEMA, length=4),
        Sequences(SCHEMA, 2, length=3),
    ],
)
def test_a_replay_on_a_device_gives_the_batches_of_a_plain_replay_through_many_rounds(
    tmp_path: Path, view: View, device: str
) -> None:
    lanes = Lanes(tmp_path, capacity=60)
    plain, other = (PrioritizedReplay(lanes.memory, view, PrioritizedConfig(), seed=3, n_opts=1000) for _ in range(2))
    resident = ResidentReplay(other, torch.device(device))
    for turn in range(30):
        lanes.play(5 + turn % 4, 3)
        expected, found = plain.batch(8), arrays(resident.tensors(8))
        check_same(found, expected)
        for replay in (plain, resident):
            replay.update_priority(expected["index"], np.arange(8.0))
    assert lanes.memory.committed > 3 * 60
    assert (resident.inserted, resident.sampled, len(resident)) == (plain.inserted, plain.sampled, len(plain))


@pytest.mark.parametrize("device", DEVICES)
def test_a_mixed_replay_on_a_device_gives_the_batches_of_a_plain_mixed_replay(tmp_path: Path, device: str) -> None:
    own, demos = Lanes(tmp_path / "own"), Lanes(tmp_path / "demos")
    own.play(20)
    demos.play(30)
    memories = own.memory, ReplayMemory.open_saved(demos.memory.directory)

    def build() -> MixedReplay:
        parts = [PrioritizedReplay(memory, Transitions(SCHEMA), PrioritizedConfig(), 0, 1000) for memory in memories]
        return MixedReplay(parts[0], {"other": Source(0.3, parts[1])}, seed=0)

    plain, resident = build(), ResidentReplay(build(), torch.device(device))
    for _ in range(10):
        expected, found = plain.batch(8), arrays(resident.tensors(8))
        check_same(found, expected)
        for replay in (plain, resident):
            replay.update_priority(expected["index"], np.arange(8.0))
    assert (resident.inserted, resident.sampled, len(resident)) == (plain.inserted, plain.sampled, len(plain))
    assert len(resident.batch(4)["source"]) == 4


def test_interventions_are_drawn_from_the_copy_of_the_actors_rows(tmp_path: Path) -> None:
    own = Lanes(tmp_path, capacity=50, schema=WITH_INTERVENTIONS)
    view = Transitions(WITH_INTERVENTIONS)

    def build() -> MixedReplay:
        kinds = (PrioritizedReplay, PrioritizedInterventions)
        parts = [kind(own.memory, view, PrioritizedConfig(), seed, 1000) for seed, kind in enumerate(kinds)]
        return MixedReplay(parts[0], {"other": Source(0.3, interventions=parts[1])}, seed=0)

    plain, resident = build(), ResidentReplay(build(), CPU)
    for _ in range(10):
        own.play(8)
        check_same(arrays(resident.tensors(8)), plain.batch(8))
    assert plain.parts[1].sampled > 15


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["wide", "linked"])
def test_no_torn_row_is_ever_given_while_another_process_overwrites(
    tmp_path: Path, kind: Literal["wide", "linked"], device: str
) -> None:
    view: View = SelfContained(WIDE) if kind == "wide" else Steps()
    capacity = CAPACITY if device == "cpu" else 8 * CAPACITY  # A GPU copies more slowly than a small ring turns.
    if kind == "wide":
        memory = ReplayMemory(tmp_path / "replay", WIDE, capacity, create=True)
    else:
        memory = open_linked(tmp_path, create=True, capacity=capacity)
    with writing(tmp_path, kind, capacity):
        wait_for(lambda: len(memory) > 200, "the first rows")
        resident = ResidentReplay(UniformReplay(memory, view, seed=0), torch.device(device))
        before = memory.committed
        draws, deadline = 0, Deadline(PATIENCE)
        while draws < 200 or memory.committed < before + 20 * capacity:  # Rows are overwritten meanwhile.
            assert not deadline.passed(), f"{draws} draws, {memory.committed - before} rows"
            draws += 1
            batch = arrays(resident.tensors(64))
            if kind == "wide":
                check_wide(batch)
            else:
                np.testing.assert_array_equal(batch["many"], np.repeat(batch["path"][..., None], 8, axis=-1))


def test_a_replay_on_a_device_gives_arrays_too(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(20)
    resident = ResidentReplay(UniformReplay(lanes.memory, Transitions(SCHEMA), seed=0), CPU)
    assert len(resident.batch(8)["obs/at"]) == 8
    assert resident.sampled == 8


def test_excluded_rows_are_not_drawn_and_the_indices_of_the_last_batch_are_known(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path)
    lanes.play(10)
    replay = UniformReplay(lanes.memory, Transitions(SCHEMA), 0)
    resident = ResidentReplay(replay, CPU)
    lanes.memory.exclude(np.array([3, 8, 4]))
    drawn = resident.tensors(200)["obs/at"].tolist()
    assert set(drawn) == {0, 1, 5, 6, 9}, "the transitions of rows 2 and 7 lead to excluded rows"
    assert replay.last_drawn.tolist() == drawn


class AllInTurn(SharedReplay):
    """A buffer of a user's own that chooses all items, excluded ones too, and gives each a column ``twice``."""

    _next = 0

    def draw(self, size: int) -> tuple[Array, Items]:
        first, end = self.reader.first, self.reader.end
        index = first + (self._next + np.arange(size)) % (end - first)
        self._next += size
        return index, {"index": index.copy(), "twice": 2 * index}


def test_excluded_items_are_not_drawn_from_a_buffer_of_a_users_own(tmp_path: Path) -> None:
    memory, writer = make(tmp_path)
    writer.append(rows(0, 10), 10, incarnation=1, seq=1)
    memory.exclude(np.array([3, 8, 4]))
    replay = AllInTurn(memory, SelfContained(ITEMS), 0)

    def check(batch: Items) -> None:
        drawn = batch["n"].tolist()
        assert set(drawn) == {0, 1, 2, 5, 6, 7, 9}
        assert batch["index"].tolist() == replay.last_drawn.tolist() == drawn
        assert batch["twice"].tolist() == [2 * n for n in drawn]

    check(arrays(ResidentReplay(replay, CPU).tensors(200)))
    check(replay.batch(200))


def test_nothing_to_draw_from_is_an_error(tmp_path: Path) -> None:
    memory = Lanes(tmp_path).memory
    with pytest.raises(NothingToDrawError, match="nothing to draw from"):
        ResidentReplay(UniformReplay(memory, Transitions(SCHEMA), seed=0), CPU).tensors(1)


def test_a_device_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Lanes(tmp_path).memory

    def no_room(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty_like", no_room)
    with pytest.raises(ConfigError, match=r"replay.resident: expected room for \d+ bytes on cpu, found too little"):
        ResidentReplay(UniformReplay(memory, Transitions(SCHEMA), seed=0), CPU)
