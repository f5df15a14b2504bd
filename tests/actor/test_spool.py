from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actor.spool import MessageGroup, Spool
from tests.clocks import Clock
from tests.conftest import PATIENCE, wait_for

InThread = Callable[..., Future[Any]]
FOREVER = 10 * PATIENCE
WINDOW, MAX_BYTES, LINGER = 4, 20, 1.0


class Exchange(RuleBasedStateMachine):
    """A spool, a learner that stores in order, and a network between them that loses what is on its way.

    Messages are 0, 1, 2, … in the order of ``put``. Those that wait may go together, and the oldest of a full spool may
    be dropped.
    """

    @initialize(drop_oldest=st.booleans(), group_rows=st.sampled_from([0, 12]))
    def begin(self, drop_oldest: bool, group_rows: int) -> None:
        self.drop_oldest, self.group_rows, self.now = drop_oldest, group_rows, 0.0
        self.spool: Spool[int] = Spool(
            MAX_BYTES,
            WINDOW,
            group_rows=group_rows,
            linger=LINGER,
            drop_oldest=drop_oldest,
            on_drop=self.dropped_one,
            clock=lambda: self.now,
        )
        self.put_at: list[float] = []
        self.sizes: list[int] = []
        self.rows: list[int] = []
        self.there_is_no_room = False
        self.grouped_at = -math.inf
        self.groups: list[MessageGroup[int]] = []  # Number n is that of groups[n - 1].
        self.dropped: list[int] = []
        self.forgotten: list[int] = []  # The learner had acknowledged them, and lost them.
        self.closed = False
        self.n_stored = 0
        self.on_its_way: deque[int] = deque()
        self.n_sent_here = self.n_arrived_here = 0
        self.acked = 0
        self.epoch: int | None = None
        self.old_epochs: list[int] = []

    def waiting(self) -> list[int]:
        """Messages that are neither acknowledged nor dropped."""
        acknowledged = {n for group in self.groups[: self.acked] for n in group.messages}
        return [n for n in range(len(self.sizes)) if n not in acknowledged | {*self.dropped, *self.forgotten}]

    @property
    def numbered(self) -> list[int]:
        return self.forgotten + [n for group in self.groups for n in group.messages]

    def dropped_one(self, message: int) -> None:
        assert message not in self.numbered, "it was sent before"
        assert message == next(n for n in self.waiting() if n not in self.numbered), "it was not the oldest"
        assert self.drop_oldest
        assert self.epoch is None, "a message is dropped while it can be sent"
        self.dropped.append(message)

    def may_wait(self, unsent: list[int]) -> bool:
        """Whether the messages that were never sent may wait for more of them."""
        is_little = sum(self.rows[n] for n in unsent) < self.group_rows
        just_after_another = self.now < self.grouped_at + LINGER
        return is_little and just_after_another and not self.there_is_no_room and not self.closed

    @rule(size=st.integers(1, 30), rows=st.integers(1, 9))
    def put(self, size: int, rows: int) -> None:
        taken = self.spool.put(len(self.sizes), size, rows, 0)
        waiting = self.waiting()
        fits = not waiting or sum(self.sizes[n] for n in waiting) + size <= MAX_BYTES
        assert taken == (fits and (self.epoch is None or len(waiting) < WINDOW))
        self.there_is_no_room = not taken
        if taken:
            self.sizes.append(size)
            self.rows.append(rows)
            self.put_at.append(self.now)
        elif self.drop_oldest and self.epoch is None:
            assert sum(self.sizes[n] for n in waiting if n in self.numbered) + size > MAX_BYTES, "it could have dropped"

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.epoch is None)
    @rule()
    def connect(self) -> None:
        self.epoch = self.spool.connect()
        self.n_sent_here = self.n_arrived_here = self.acked

    @precondition(lambda self: self.epoch is not None)
    @rule()
    def break_the_connection(self) -> None:
        self.spool.disconnect()
        assert self.epoch is not None
        self.old_epochs.append(self.epoch)
        self.epoch = None
        self.on_its_way.clear()

    @precondition(lambda self: self.epoch is None and self.acked)
    @rule()
    def the_learner_comes_back_with_less_than_it_acknowledged(self) -> None:
        assert self.spool.acknowledged == self.acked
        self.spool.renumber()
        self.forgotten += [n for group in self.groups[: self.acked] for n in group.messages]
        self.groups = self.groups[self.acked :]
        self.n_stored = self.acked = 0

    @precondition(lambda self: self.epoch is not None)
    @rule()
    def send(self) -> None:
        assert self.epoch is not None
        sent = self.spool.next_unsent(self.epoch, 0)
        if sent is None:
            unsent = [n for n in self.waiting() if n not in self.numbered]
            assert not unsent or self.may_wait(unsent), "something was left unsent"
            return
        seq, group = sent
        self.n_sent_here += 1
        assert seq == self.n_sent_here, "sent out of order or twice on one connection"
        if seq > len(self.groups):
            messages, before = group.messages, max(self.numbered, default=-1)
            self.groups.append(group)
            self.grouped_at = self.now
            assert len(messages) == 1 or sum(self.rows[n] for n in messages) <= self.group_rows
            assert messages == [*range(messages[0], messages[-1] + 1)], "something was dropped within a group"
            assert group.after_drop == (messages[0] != before + 1)
        assert self.groups[seq - 1] == group, "a number has come to mean another group"
        self.on_its_way.append(seq)

    @precondition(lambda self: self.old_epochs)
    @rule(data=st.data())
    def an_old_connection_gets_nothing(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.old_epochs))
        assert not self.spool.is_current(epoch)
        assert self.spool.next_unsent(epoch, 0) is None

    @precondition(lambda self: self.on_its_way)
    @rule()
    def arrive(self) -> None:
        self.n_arrived_here = self.on_its_way.popleft()
        assert self.n_arrived_here <= self.n_stored + 1, "the learner misses a message"
        self.n_stored = max(self.n_stored, self.n_arrived_here)

    @precondition(lambda self: self.epoch is not None)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.n_arrived_here))
        self.spool.acknowledge(seq)
        self.acked = max(self.acked, seq)

    @invariant()
    def keeps_exactly_what_is_neither_acknowledged_nor_dropped(self) -> None:
        waiting = self.waiting()
        assert (len(self.spool), self.spool.n_bytes) == (len(waiting), sum(self.sizes[n] for n in waiting))

    def teardown(self) -> None:
        """In the end everything arrives in order, but for what was dropped."""
        if self.epoch is None:
            self.connect()
        self.spool.close()
        self.closed = True
        while not self.spool.drained:
            self.send()
        while self.on_its_way:
            self.arrive()
        assert self.numbered == [n for n in range(len(self.sizes)) if n not in self.dropped]
        self.spool.acknowledge(self.n_stored)
        assert len(self.spool) == 0


def test_messages_are_delivered_in_order_exactly_once_whatever_the_network_does() -> None:
    run_state_machine_as_test(Exchange, settings=settings(stateful_step_count=40, max_examples=50))


@pytest.fixture
def in_thread() -> Iterator[InThread]:
    """Calls something in a thread of its own, and returns once it waits there."""
    with ThreadPoolExecutor() as pool:

        def _in_thread(call: Callable[..., object], *arguments: object) -> Future[Any]:
            idents: list[int] = []

            def run() -> object:
                idents.append(threading.get_ident())
                return call(*arguments)

            def waits() -> bool:
                return bool(idents) and sys._current_frames()[idents[0]].f_code.co_name == "wait"

            future = pool.submit(run)
            wait_for(waits, "a call that waits")
            assert not future.done()
            return future

        yield _in_thread


def take(spool: Spool[str], epoch: int, seconds: float) -> tuple[int, list[str]] | None:
    """The next group's number and messages."""
    unsent = spool.next_unsent(epoch, seconds)
    return unsent and (unsent[0], unsent[1].messages)


def make(*messages: str, max_bytes: int = 100, window: int = 100) -> Spool[str]:
    """A spool of messages that are one byte each."""
    spool: Spool[str] = Spool(max_bytes, window)
    for message in messages:
        assert spool.put(message, 1, 1, 0)
    return spool


def test_a_message_larger_than_the_spool_is_taken_when_the_spool_is_empty() -> None:
    spool = make(max_bytes=10)
    assert spool.put("huge", 1000, 1, 0)
    assert not spool.put("small", 1, 1, 0)


def test_while_the_learner_is_away_only_bytes_count() -> None:
    spool = make(*"abcde", max_bytes=5, window=2)
    assert not spool.put("f", 1, 1, 0)
    epoch = spool.connect()
    for _ in "abcde":
        take(spool, epoch, 0)
    spool.acknowledge(3)
    assert not spool.put("f", 1, 1, 0)
    spool.acknowledge(4)
    assert spool.put("f", 1, 1, 0)


def test_a_full_spool_lets_its_producer_wait_for_an_acknowledgement(in_thread: InThread) -> None:
    spool = make("a", "b", max_bytes=2)
    epoch = spool.connect()
    put = in_thread(spool.put, "c", 1, 1, FOREVER)
    assert take(spool, epoch, 0) == (1, ["a"])
    assert len(spool) == 2
    spool.acknowledge(1)
    assert put.result(PATIENCE)
    assert len(spool) == 2


def test_a_producer_that_waits_for_the_window_goes_on_when_the_connection_breaks(in_thread: InThread) -> None:
    spool = make("a", window=1)
    spool.connect()
    assert not spool.put("b", 1, 1, 0)
    put = in_thread(spool.put, "b", 1, 1, FOREVER)
    spool.disconnect()
    assert put.result(PATIENCE)


def test_a_sender_waits_for_a_message(in_thread: InThread) -> None:
    spool = make()
    sent = in_thread(take, spool, spool.connect(), FOREVER)
    assert spool.put("a", 1, 1, 0)
    assert sent.result(PATIENCE) == (1, ["a"])


@pytest.mark.parametrize("end", [Spool.close, Spool.disconnect, lambda spool: spool.connect()])
def test_a_sender_waits_no_longer_after_the_end(in_thread: InThread, end: Callable[[Spool[str]], object]) -> None:
    spool = make()
    sent = in_thread(take, spool, spool.connect(), FOREVER)
    end(spool)
    assert sent.result(PATIENCE) is None


def test_a_closed_spool_still_gives_out_its_messages_and_then_is_drained() -> None:
    spool = make("a", "b")
    epoch = spool.connect()
    assert take(spool, epoch, 0) == (1, ["a"])
    spool.close()
    before = spool.drained
    assert take(spool, epoch, 0) == (2, ["b"])
    assert (before, spool.drained) == (False, True)
    assert len(spool) == 2


def test_a_spool_that_is_open_is_never_drained() -> None:
    assert not make().drained


def test_after_a_broken_connection_messages_that_were_not_acknowledged_are_sent_again() -> None:
    spool = make("a", "b")
    epoch = spool.connect()
    assert [take(spool, epoch, 0), take(spool, epoch, 0)] == [(1, ["a"]), (2, ["b"])]
    spool.close()
    before = spool.drained
    spool.disconnect()
    again = spool.connect()
    assert (before, spool.drained) == (True, False)
    assert [take(spool, again, 0), take(spool, again, 0)] == [(1, ["a"]), (2, ["b"])]


def test_a_full_spool_that_may_drop_drops_the_oldest_while_the_learner_is_away_and_waits_while_it_is_there() -> None:
    dropped: list[str] = []
    spool: Spool[str] = Spool(3, 100, drop_oldest=True, on_drop=dropped.append)
    assert all(spool.put(message, 1, 1, 0) for message in "abcde")
    assert dropped == ["a", "b"]
    epoch = spool.connect()
    assert not spool.put("f", 1, 1, 0)
    assert [take(spool, epoch, 0) for _ in range(4)] == [(1, ["c"]), (2, ["d"]), (3, ["e"]), None]


def test_a_message_that_was_sent_is_never_dropped_since_the_learner_may_have_it() -> None:
    dropped: list[str] = []
    spool: Spool[str] = Spool(2, 100, drop_oldest=True, on_drop=dropped.append)
    assert spool.put("a", 1, 1, 0)
    assert take(spool, spool.connect(), 0) == (1, ["a"])
    spool.disconnect()
    assert spool.put("b", 1, 1, 0)
    assert spool.put("c", 1, 1, 0)
    assert dropped == ["b"]
    assert not spool.put("large", 2, 1, 0)
    again = spool.connect()
    assert [take(spool, again, 0) for _ in range(3)] == [(1, ["a"]), (2, ["c"]), None]


def grouping(*, group_rows: int, window: int = 100) -> tuple[Spool[str], int, Clock]:
    """A connected spool that has just sent "a", its epoch and its clock."""
    clock = Clock(0.0)
    spool: Spool[str] = Spool(100, window, group_rows=group_rows, linger=0.5, clock=clock)
    epoch = spool.connect()
    assert spool.put("a", 1, 1, 0)
    assert take(spool, epoch, 0) == (1, ["a"]), "nothing was sent before it, so it does not wait"
    return spool, epoch, clock


def test_messages_right_after_another_go_out_together_when_the_linger_is_over() -> None:
    spool, epoch, clock = grouping(group_rows=4)
    for message in "bc":
        spool.put(message, 1, 1, 0)
    assert take(spool, epoch, 0) is None, "a little waits for more"
    spool.acknowledge(1)
    assert take(spool, epoch, 0) is None, "an acknowledgement does not change that"
    clock.now = 0.5
    assert take(spool, epoch, 0) == (2, ["b", "c"])


def test_a_sender_wakes_when_the_linger_is_over() -> None:
    spool: Spool[str] = Spool(100, 100, group_rows=4, linger=0.01)
    epoch = spool.connect()
    for seq, message in enumerate("ab", 1):
        spool.put(message, 1, 1, 0)
        assert take(spool, epoch, FOREVER) == (seq, [message])


@pytest.mark.parametrize("readings", range(5))
def test_a_sender_does_not_wait_on_if_the_linger_ends_while_it_looks(readings: int) -> None:
    is_over: Iterator[bool] = itertools.repeat(False)
    spool: Spool[str] = Spool(100, 100, group_rows=4, linger=0.01, clock=lambda: 1.0 if next(is_over) else 0.0)
    epoch = spool.connect()
    assert spool.put("a", 1, 1, 0)
    assert take(spool, epoch, 0) == (1, ["a"])
    assert spool.put("b", 1, 1, 0)
    is_over = itertools.chain([False] * readings, itertools.repeat(True))
    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(take, spool, epoch, FOREVER).result(PATIENCE) == (2, ["b"])
        finally:
            spool.close()


def test_messages_go_out_as_soon_as_they_fill_a_group() -> None:
    spool, epoch, _ = grouping(group_rows=4)
    for message in "bcdefghi":
        spool.put(message, 1, 1, 0)
    assert [take(spool, epoch, 0) for _ in range(3)] == [(2, [*"bcde"]), (3, [*"fghi"]), None]


def test_a_message_of_as_many_rows_as_a_group_goes_by_itself() -> None:
    spool, epoch, _ = grouping(group_rows=4)
    for message, rows in (("b", 3), ("c", 4), ("d", 1)):
        spool.put(message, 1, rows, 0)
    spool.close()
    assert [take(spool, epoch, 0) for _ in range(3)] == [(2, ["b"]), (3, ["c"]), (4, ["d"])]


def test_a_partial_group_goes_out_at_once_when_there_is_no_room_for_more() -> None:
    spool, epoch, _ = grouping(group_rows=50, window=3)
    for message in "bc":
        spool.put(message, 1, 1, 0)
    assert take(spool, epoch, 0) is None
    assert not spool.put("d", 1, 1, 0)
    assert take(spool, epoch, 0) == (2, ["b", "c"])


def test_a_sender_that_waits_for_more_wakes_when_there_is_no_room_for_more(in_thread: InThread) -> None:
    spool: Spool[str] = Spool(100, 2, group_rows=50, linger=FOREVER)
    epoch = spool.connect()
    assert spool.put("a", 1, 1, 0)
    assert take(spool, epoch, 0) == (1, ["a"])
    assert spool.put("b", 1, 1, 0)
    sent = in_thread(take, spool, epoch, FOREVER)
    assert not spool.put("c", 1, 1, 0)
    assert sent.result(PATIENCE) == (2, ["b"])


def test_a_group_is_sent_again_as_it_was() -> None:
    spool: Spool[str] = Spool(100, 100, group_rows=50)
    for message in "ab":
        spool.put(message, 1, 1, 0)
    assert take(spool, spool.connect(), 0) == (1, ["a", "b"])
    spool.disconnect()
    spool.put("c", 1, 1, 0)
    again = spool.connect()
    spool.close()
    assert [take(spool, again, 0) for _ in range(2)] == [(1, ["a", "b"]), (2, ["c"])]


def test_a_group_says_that_messages_were_dropped_before_it_and_says_so_again() -> None:
    spool: Spool[str] = Spool(2, 100, drop_oldest=True)
    assert all(spool.put(message, 1, 1, 0) for message in "abc")
    for _ in range(2):
        epoch = spool.connect()
        found = [unsent[1] for _ in range(2) if (unsent := spool.next_unsent(epoch, 0))]
        assert [(*group.messages, group.after_drop) for group in found] == [("b", True), ("c", False)]
        spool.disconnect()


def quick(*, window: int, group_rows: int) -> tuple[Spool[str], Clock]:
    """A connected spool whose producer need not wait for messages that are younger than a second."""
    clock = Clock(0.0)
    spool: Spool[str] = Spool(100, window, group_rows=group_rows, clock=clock)
    spool.grace = 1.0
    spool.connect()
    return spool, clock


def test_a_producer_does_not_wait_for_messages_that_are_young() -> None:
    spool, clock = quick(window=2, group_rows=50)
    assert all(spool.put(message, 1, 1, 0) for message in "abcd")
    clock.now = 1.0
    assert not spool.put("e", 1, 1, 0), "more than the window, and the oldest is old enough"
    spool.acknowledge(0)
    assert not spool.put("e", 1, 1, 0)


def test_an_acknowledgement_of_old_messages_lets_the_producer_go_on() -> None:
    spool, clock = quick(window=2, group_rows=50)
    assert spool.put("a", 1, 1, 0)
    assert spool.next_unsent(1, 0)
    clock.now = 0.5
    assert spool.put("b", 1, 1, 0)
    assert spool.next_unsent(1, 0)
    clock.now = 1.0
    assert not spool.put("c", 1, 1, 0)
    spool.acknowledge(1)
    assert spool.put("c", 1, 1, 0)
    assert spool.put("d", 1, 1, 0)


def test_a_producer_is_at_most_two_groups_ahead_of_the_sender() -> None:
    spool, _ = quick(window=2, group_rows=3)
    assert all(spool.put(message, 1, 1, 0) for message in "abcdef")
    assert not spool.put("g", 1, 1, 0)
    assert take(spool, 1, 0) == (1, [*"abc"])
    assert spool.put("g", 1, 1, 0)


def test_a_producer_may_ask_for_room_before_it_has_a_message() -> None:
    spool = make("a", "b", max_bytes=3)
    assert spool.wait_for_room(1, 0)
    assert not spool.wait_for_room(2, 0)
    epoch = spool.connect()
    take(spool, epoch, 0)
    spool.acknowledge(1)
    assert spool.wait_for_room(2, 0)


def test_a_producer_may_wait_until_old_messages_are_acknowledged() -> None:
    clock = Clock(0.0)
    spool: Spool[str] = Spool(100, 100, clock=clock)
    spool.put("a", 1, 1, 0)
    clock.now = 5.0
    assert spool.wait_until_younger(2.0, 0), "nobody could acknowledge it"
    epoch = spool.connect()
    assert not spool.wait_until_younger(2.0, 0)
    spool.put("b", 1, 1, 0)
    take(spool, epoch, 0)
    spool.acknowledge(1)
    assert spool.wait_until_younger(2.0, 0)


def test_unacknowledged_messages_are_those_that_were_sent_and_those_that_wait() -> None:
    spool: Spool[int] = Spool(MAX_BYTES, WINDOW)
    epoch = spool.connect()
    for message in range(3):
        assert spool.put(message, 1, 1, 0.0)
    for _ in range(2):
        spool.next_unsent(epoch, 0.0)
    spool.acknowledge(1)
    assert spool.unacknowledged() == [1, 2]


def test_while_messages_are_held_one_may_be_put_and_none_goes_out() -> None:
    spool: Spool[str] = Spool(1000, 100)
    epoch = spool.connect()
    spool.hold(True)
    assert spool.put("a", 1, 1, 0.0)
    assert not spool.put("b", 1, 1, 0.0), "one is enough, and more would only grow old"
    assert spool.next_unsent(epoch, 0.01) is None
    spool.hold(False)
    assert spool.put("b", 1, 1, 0.0)
    found = spool.next_unsent(epoch, 1.0)
    assert found is not None
    assert found[1].messages == ["a"]


@pytest.mark.parametrize("release", ["connect", "close"])
def test_a_new_connection_or_a_closed_spool_holds_nothing(release: str) -> None:
    spool: Spool[str] = Spool(1000, 100)
    epoch = spool.connect()
    spool.hold(True)
    assert spool.put("a", 1, 1, 0.0)
    if release == "connect":
        spool.disconnect()
        epoch = spool.connect()
    else:
        spool.close()
    found = spool.next_unsent(epoch, 1.0)
    assert found is not None
    assert found[1].messages == ["a"]
