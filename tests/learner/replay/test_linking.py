"""Links of single batches; test_writer.py stores them."""

from __future__ import annotations

import numpy as np
import pytest

from common.data import Items
from learner.replay.linking import BatchLinks, LaneEnds
from tests.learner.replay.memories import linked_rows


def batch(lanes: list[int], first: str = "", final: str = "") -> Items:
    """Rows of these lanes; ``first`` and ``final`` mark rows with an x."""
    flags = {"first": first, "final": final}
    marked = {name: np.array([mark == "x" for mark in marks.ljust(len(lanes))]) for name, marks in flags.items()}
    return {"lane": np.array(lanes, np.uint16), **marked}


def link(ends: LaneEnds, items: Items, start: int, oldest: int = 0) -> BatchLinks:
    """Link a batch and count it as stored."""
    links, last = ends.link(items, start, oldest)
    ends.note(last)
    return links


def test_rows_of_one_lane_follow_one_another_and_the_row_before_the_batch() -> None:
    ends = LaneEnds()
    links = link(ends, batch([5, 5, 5], first="x"), 10)
    assert (links.previous.tolist(), links.next.tolist()) == ([0, 1, 1], [1, 1, 0])
    assert (np.size(links.before), links.new_steps) == (0, 2)
    links = link(ends, batch([5, 5]), 20)
    assert (links.previous.tolist(), links.next.tolist()) == ([8, 1], [1, 0])
    assert (links.before, links.offsets, links.new_steps) == (12, 8, 2)


def test_each_lane_of_a_round_follows_its_own_row_of_the_round_before() -> None:
    ends = LaneEnds()
    assert link(ends, batch([0, 2, 7], first="xxx"), 0).previous.tolist() == [0, 0, 0]
    links = link(ends, batch([0, 1, 2, 7]), 3)
    assert links.previous.tolist() == [3, 0, 4, 4]
    assert (np.atleast_1d(links.before).tolist(), np.atleast_1d(links.offsets).tolist(), links.new_steps) == (
        [0, 1, 2],
        [3, 4, 4],
        3,
    )


def test_rows_of_several_rounds_are_linked_within_the_batch_and_to_earlier_rows() -> None:
    ends = LaneEnds()
    link(ends, batch([1, 0], first="xx"), 0)
    links = link(ends, batch([1, 0, 3, 1, 0, 3], first="  x"), 2)
    assert links.previous.tolist() == [2, 2, 0, 3, 3, 3]
    assert links.next.tolist() == [3, 3, 3, 0, 0, 0]
    assert sorted(zip(np.atleast_1d(links.before).tolist(), np.atleast_1d(links.offsets).tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
    ]
    assert links.new_steps == 5


def test_an_episode_follows_the_final_row_of_the_episode_before_and_a_final_row_is_no_step() -> None:
    links = link(LaneEnds(), batch([4, 4, 4, 4, 4], first="x  x", final="  x"), 0)
    assert links.previous.tolist() == [0, 1, 1, 1, 1]
    assert links.new_steps == 3


@pytest.mark.parametrize("lanes", [[0], [0, 1]])
def test_an_episode_after_a_lost_episode_has_no_link_to_earlier_rows(lanes: list[int]) -> None:
    ends, marks = LaneEnds(), "x" * len(lanes)
    link(ends, batch(lanes, first=marks), 0)
    assert link(ends, batch(lanes, first=marks), 10).previous.tolist() == [0] * len(lanes)
    assert link(ends, batch(lanes, final=marks), 20).previous.tolist() == [10] * len(lanes)
    assert link(ends, batch(lanes), 30).previous.tolist() == [0] * len(lanes), "rows after a final row, in no episode"
    assert link(ends, batch(lanes), 40).previous.tolist() == [10] * len(lanes)


def test_rows_that_no_longer_count_are_not_linked_to() -> None:
    ends = LaneEnds()
    link(ends, batch([0, 1], first="xx"), 100)
    assert link(ends, batch([0, 1]), 110, oldest=101).previous.tolist() == [0, 10]


def test_the_highest_lane_has_room_and_the_lanes_below_it_have_no_rows() -> None:
    ends = LaneEnds()
    link(ends, batch([65_535], first="x"), 0)
    assert len(ends) == 65_536
    assert link(ends, batch([3, 65_535]), 1).previous.tolist() == [0, 2]


def test_known_links_give_the_same_as_computed_links() -> None:
    ends = LaneEnds()
    for start, size in ((0, 20), (20, 1), (21, 3), (24, 40)):
        items = linked_rows(start, size)
        computed = link(ends, items, start, oldest=min(start, 18))
        known = BatchLinks.of(computed.previous, items["first"], start, oldest=min(start, 18))
        assert known.previous.tolist() == computed.previous.tolist()
        assert known.next.tolist() == computed.next.tolist()
        assert dict(
            zip(np.atleast_1d(known.before).tolist(), np.atleast_1d(known.offsets).tolist(), strict=True)
        ) == dict(zip(np.atleast_1d(computed.before).tolist(), np.atleast_1d(computed.offsets).tolist(), strict=True))
        assert known.new_steps == computed.new_steps
    cut = BatchLinks.of(np.array([3, 3, 3, 3], np.uint32), np.zeros(4, np.bool_), start=100, oldest=98)
    assert (cut.previous.tolist(), np.atleast_1d(cut.before).tolist(), cut.new_steps) == ([0, 3, 3, 3], [98, 99], 3)


@pytest.mark.parametrize("lanes", [[4], [4, 5, 6], [4, 9, 11], [4, 5, 6, 4, 5, 6, 4, 5], [9, 4], [4, 4, 9, 4]])
def test_lanes_are_linked_alike_in_whatever_order_they_come(lanes: list[int]) -> None:
    ends, last = LaneEnds(), dict[int, int]()
    for start in (0, 50):
        items = batch(lanes)
        links = link(ends, items, start)
        if not start:
            assert not links.previous[0], "nothing came before"
        for row, lane in enumerate(lanes, start):
            assert links.previous[row - start] == (row - last[lane] if lane in last else 0)
            last[lane] = row


def unfinished(ends: LaneEnds, items: Items, start: int) -> int:
    """Link and note a batch; how many episodes in it follow one without an end."""
    links, last = ends.link(items, start, 0)
    found = ends.count_unfinished(items, links.previous)
    ends.note(last)
    return found


def test_episodes_that_follow_one_without_a_final_row_are_counted() -> None:
    ends = LaneEnds()
    assert unfinished(ends, batch([3, 3, 3, 3], first="x  x", final="  x "), 0) == 0, "the first one ended"
    assert unfinished(ends, batch([3, 3], first="x"), 4) == 1, "the batch before was in the midst of an episode"
    assert unfinished(ends, batch([3, 3, 3], first=" xx"), 6) == 2, "within the batch"
    assert unfinished(ends, batch([3]), 9) == 0


def test_episodes_without_an_end_are_counted_over_all_lanes() -> None:
    ends = LaneEnds()
    assert unfinished(ends, batch([0, 1, 2], first="xxx"), 0) == 0, "lanes that begin"
    assert unfinished(ends, batch([0, 1, 2, 4], first="  xx", final="x   "), 3) == 1
    assert unfinished(ends, batch([2, 0, 1, 0], first="xx x"), 7) == 2, "lane 2 again, and lane 0 twice after its end"
