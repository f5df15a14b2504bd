from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import Array, Column, Items, Schema
from common.wire.frames import ItemBuffer, Packer, unpack
from tests.frames import SCHEMA, pictures, stacked_items

SINGLE = Schema((Column("obs", "|u1", (1, 2, 3), frames=True),))


def test_each_row_of_an_episode_adds_one_frame_to_those_of_the_first_stack() -> None:
    batch = Packer(SCHEMA).pack(stacked_items(np.arange(3, 6)), 3)
    np.testing.assert_array_equal(batch.frames, pictures(np.arange(7)))
    np.testing.assert_array_equal(batch.columns["obs"], [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]])
    np.testing.assert_array_equal(batch.columns["next_obs"], [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]])
    assert batch.columns["obs"].dtype == "<u4"


def test_only_the_first_rows_are_packed() -> None:
    batch = Packer(SCHEMA).pack(stacked_items(np.arange(3, 6)), 1)
    assert (batch.rows, len(batch.columns["n"]), len(batch.frames)) == (1, 1, 5)


def test_no_rows_have_no_frames() -> None:
    batch = Packer(SCHEMA).pack(stacked_items(np.arange(0)), 0)
    assert batch.columns["obs"].shape == (0, 4)
    assert batch.frames.shape == (0, 2, 3)


@pytest.mark.parametrize("difference", [0, 5])
def test_frames_that_differ_in_one_byte_are_two(difference: int) -> None:
    frames = np.zeros((2, 1, 2, 3), np.uint8)
    frames[1].flat[difference] = 1
    assert len(Packer(SINGLE).pack({"obs": frames}, 2).frames) == 2


def test_without_frame_columns_the_columns_are_those_of_the_items() -> None:
    items = {"n": np.arange(5)}
    batch = Packer(Schema((Column("n", "<i8"),))).pack(items, 5)
    assert np.shares_memory(batch.columns["n"], items["n"])
    assert (len(batch.frames), batch.back) == (0, 0)


def test_packed_step_by_step_each_step_adds_one_new_frame() -> None:
    packer = Packer(SCHEMA)
    batches = [packer.pack(stacked_items(np.array([n])), 1) for n in range(6)]
    assert [len(batch.frames) for batch in batches] == [2, 1, 1, 1, 1, 1]
    assert [batch.back for batch in batches] == [0, 2, 3, 4, 4, 4]


@given(st.lists(st.integers(1, 9), max_size=20))
def test_positions_refer_to_the_frames_of_all_batches_so_far(sizes: list[int]) -> None:
    packer, start, given_so_far = Packer(SCHEMA), 0, np.empty((0, 2, 3), np.uint8)
    lowest = 0
    for size in sizes:
        items = stacked_items(np.arange(start, start + size))
        batch = packer.pack(items, size)
        base = len(given_so_far) - batch.back
        given_so_far = np.concatenate([given_so_far, batch.frames])
        for name in ("obs", "next_obs"):
            np.testing.assert_array_equal(given_so_far[base + batch.columns[name].astype(int)], items[name])
        assert base >= lowest, "no batch may need an older frame than the batch before it"
        lowest, start = base, start + size


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30))
def test_a_packer_goes_on_from_the_frames_of_another_also_where_pictures_repeat(moves: list[int]) -> None:
    packer, given_so_far = Packer(SCHEMA), np.empty((0, 2, 3), np.uint8)
    for newest in np.cumsum(moves) // 3:  # Most pictures come several times.
        stacks = [pictures(np.maximum(0, newest + i + np.arange(-3, 1)))[None] for i in (0, 1)]
        items = {"obs": stacks[0], "n": np.array([newest]), "next_obs": stacks[1]}
        before = given_so_far[len(given_so_far) - packer.back :].tobytes()
        again, batch = Packer(SCHEMA, before).pack(items, 1), packer.pack(items, 1)
        assert (again.back, again.frames.tobytes()) == (batch.back, batch.frames.tobytes())
        np.testing.assert_array_equal(again.columns["obs"], batch.columns["obs"])
        given_so_far = np.concatenate([given_so_far, batch.frames])


def packed_by_content(items: Items) -> tuple[dict[str, list[list[int]]], list[bytes]]:
    """Positions and frames if every frame is looked up by its bytes, in order: a packer must give the same."""
    distinct: dict[bytes, int] = {}
    places: dict[str, list[list[int]]] = {"obs": [], "next_obs": []}
    for row in range(len(items["n"])):
        for name, found in places.items():
            found.append([distinct.setdefault(frame.tobytes(), len(distinct)) for frame in items[name][row]])
    return places, list(distinct)


def interleaved(n_envs: int, steps: int) -> Array:
    """The numbers of steps of several environments, one row of each environment in turn."""
    return (np.arange(steps)[:, None] + 100 * np.arange(n_envs)).ravel()


@pytest.mark.parametrize(
    "numbers",
    [np.arange(30), interleaved(4, 9), interleaved(3, 1), np.random.default_rng(0).permutation(30), np.zeros(5, int)],
    ids=["one life", "four environments", "a step of three", "shuffled", "one step again and again"],
)
@pytest.mark.parametrize("ahead", [0, 2], ids=["one step", "n steps"])
def test_frames_are_found_and_ordered_as_if_all_were_looked_up_by_content(numbers: Array, ahead: int) -> None:
    items = stacked_items(numbers)
    items["next_obs"] = stacked_items(numbers + ahead)["next_obs"]
    batch = Packer(SCHEMA).pack(items, len(numbers))
    places, contents = packed_by_content(items)
    assert {name: batch.columns[name].tolist() for name in places} == places
    assert [frame.tobytes() for frame in batch.frames] == contents


def test_a_picture_that_keeps_coming_back_is_packed_again_before_it_is_too_far_back() -> None:
    packer = Packer(SCHEMA)
    backs, given = [], 0
    for n in range(1, 200):
        numbers = np.array([[0, n, 0, n]])
        batch = packer.pack({"obs": pictures(numbers), "n": np.array([n]), "next_obs": pictures(numbers)}, 1)
        backs.append(batch.back)
        given += len(batch.frames)
    assert max(backs) == SCHEMA.max_frames
    assert given < 200 * 1.2


def test_a_new_packer_knows_no_frames() -> None:
    items = stacked_items(np.arange(10, 13))
    for _ in range(2):
        batch = Packer(SCHEMA).pack(items, 3)
        for name, column in unpack(SCHEMA, batch).items():
            np.testing.assert_array_equal(column, items[name])


def test_each_batch_of_a_buffer_is_complete_by_itself() -> None:
    buffer = ItemBuffer(SCHEMA)
    for n in range(20):
        items = stacked_items(np.array([n]))
        buffer.add(items, 1)
        for column in items.values():
            column.fill(0)  # Pushed arrays may be used again at once.
        for name, column in buffer.take().items(SCHEMA).items():
            np.testing.assert_array_equal(column, stacked_items(np.array([n]))[name])


def test_a_frame_has_one_number_in_all_batches_of_a_buffer() -> None:
    buffer, batches = ItemBuffer(SCHEMA), []
    for n in range(6):
        buffer.add(stacked_items(np.array([n])), 1)
        batches.append(buffer.take())
    for before, after in pairwise(batches):
        assert after.numbers[0, :4].tolist() == before.numbers[0, 4:].tolist(), "next_obs of a step is obs of the next"
    for number in range(batches[3].first, batches[3].end):
        owners = [batch for batch in batches if batch.first <= number < batch.end]
        assert len({bytes(batch.frame(number)) for batch in owners}) == 1


def test_a_buffer_gives_all_items_since_the_last_batch_and_the_memory_they_take() -> None:
    buffer = ItemBuffer(Schema((Column("n", "<i8"),)))
    buffer.add({"n": np.array([1, 2])}, 2)
    buffer.add({"n": np.array([3])}, 1)
    assert buffer.rows == 3
    batch = buffer.take()
    assert (batch.rows, batch.n_bytes, buffer.rows) == (3, 24, 0)
    assert batch.items(Schema((Column("n", "<i8"),)))["n"].tolist() == [1, 2, 3]
