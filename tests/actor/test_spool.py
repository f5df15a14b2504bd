from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from actor.spool import Spool
from tests.conftest import PATIENCE, wait_for

InThread = Callable[..., Future[Any]]
FOREVER = 10 * PATIENCE
WINDOW, MAX_BYTES = 4, 20


class Exchange(RuleBasedStateMachine):
    """A spool, a learner that stores in order, and a network between them that loses what is on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.spool: Spool[tuple[int, int]] = Spool(MAX_BYTES, WINDOW)
        self.put_sizes: list[int] = []
        self.stored: list[int] = []
        self.on_its_way: deque[int] = deque()
        self.acked = 0
        self.epoch: int | None = None
        self.old_epochs: list[int] = []

    @rule(size=st.integers(1, 30))
    def put(self, size: int) -> None:
        waiting = self.put_sizes[self.acked :]
        room = not waiting or sum(waiting) + size <= MAX_BYTES
        window = self.epoch is None or len(waiting) < WINDOW
        seq = self.spool.next_seq()
        assert seq == len(self.put_sizes) + 1
        assert self.spool.put((seq, size), size, 0) == (room and window)
        if room and window:
            self.put_sizes.append(size)

    @precondition(lambda self: self.epoch is None)
    @rule()
    def connect(self) -> None:
        self.epoch = self.spool.connect(len(self.stored))
        self.acked = len(self.stored)

    @precondition(lambda self: self.epoch is not None)
    @rule()
    def break_the_connection(self) -> None:
        self.spool.disconnect()
        assert self.epoch is not None
        self.old_epochs.append(self.epoch)
        self.epoch = None
        self.on_its_way.clear()

    @precondition(lambda self: self.epoch is not None)
    @rule()
    def send(self) -> None:
        assert self.epoch is not None
        message = self.spool.next_unsent(self.epoch, 0)
        expected = len(self.stored) + len(self.on_its_way) + 1
        if message is None:
            assert expected == len(self.put_sizes) + 1, "something was left unsent"
        else:
            assert message[0] == expected, "sent out of order or twice on one connection"
            self.on_its_way.append(message[0])

    @precondition(lambda self: self.old_epochs)
    @rule(data=st.data())
    def an_old_connection_gets_nothing(self, data: st.DataObject) -> None:
        epoch = data.draw(st.sampled_from(self.old_epochs))
        assert not self.spool.is_current(epoch)
        assert self.spool.next_unsent(epoch, 0) is None

    @precondition(lambda self: self.on_its_way)
    @rule()
    def arrive(self) -> None:
        self.stored.append(self.on_its_way.popleft())

    @precondition(lambda self: self.epoch is not None)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, len(self.stored)))
        self.spool.acknowledge(seq)
        self.acked = max(self.acked, seq)

    @invariant()
    def keeps_exactly_what_is_not_acknowledged(self) -> None:
        waiting = self.put_sizes[self.acked :]
        assert (len(self.spool), self.spool.n_bytes) == (len(waiting), sum(waiting))

    @invariant()
    def stored_in_order_and_once(self) -> None:
        assert self.stored == list(range(1, len(self.stored) + 1))

    def teardown(self) -> None:
        """In the end everything arrives."""
        if self.epoch is None:
            self.connect()
        self.spool.close()
        while not self.spool.drained:
            self.send()
        while self.on_its_way:
            self.arrive()
        assert len(self.stored) == len(self.put_sizes)
        self.spool.acknowledge(len(self.stored))
        assert len(self.spool) == 0


def test_what_is_put_is_delivered_in_order_exactly_once_whatever_the_network_does() -> None:
    run_state_machine_as_test(Exchange, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))


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


def make(*messages: str, max_bytes: int = 100, window: int = 100) -> Spool[str]:
    """A spool of messages that are one byte each."""
    spool: Spool[str] = Spool(max_bytes, window)
    for message in messages:
        assert spool.put(message, 1, 0)
    return spool


def test_a_message_larger_than_everything_is_taken_when_nothing_else_is_kept() -> None:
    spool = make(max_bytes=10)
    assert spool.put("huge", 1000, 0)
    assert not spool.put("small", 1, 0)


def test_while_the_learner_is_away_only_bytes_count() -> None:
    spool = make(*"abcde", max_bytes=5, window=2)
    assert not spool.put("f", 1, 0)
    spool.connect(3)
    assert not spool.put("f", 1, 0)
    spool.acknowledge(4)
    assert spool.put("f", 1, 0)


def test_a_full_spool_lets_its_producer_wait_for_an_acknowledgement(in_thread: InThread) -> None:
    spool = make("a", "b", max_bytes=2)
    epoch = spool.connect(0)
    put = in_thread(spool.put, "c", 1, FOREVER)
    assert spool.next_unsent(epoch, 0) == "a"
    assert len(spool) == 2
    spool.acknowledge(1)
    assert put.result(PATIENCE)
    assert len(spool) == 2


def test_a_producer_that_waits_for_the_window_goes_on_when_the_connection_breaks(in_thread: InThread) -> None:
    spool = make("a", window=1)
    spool.connect(0)
    assert not spool.put("b", 1, 0)
    put = in_thread(spool.put, "b", 1, FOREVER)
    spool.disconnect()
    assert put.result(PATIENCE)


def test_a_sender_waits_for_a_message(in_thread: InThread) -> None:
    spool = make()
    sent = in_thread(spool.next_unsent, spool.connect(0), FOREVER)
    assert spool.put("a", 1, 0)
    assert sent.result(PATIENCE) == "a"


@pytest.mark.parametrize("end", ["close", "disconnect"])
def test_a_sender_waits_no_longer_after_the_end(in_thread: InThread, end: str) -> None:
    spool = make()
    sent = in_thread(spool.next_unsent, spool.connect(0), FOREVER)
    getattr(spool, end)()
    assert sent.result(PATIENCE) is None


def test_a_closed_spool_still_gives_out_what_it_has_and_then_is_drained() -> None:
    spool = make("a", "b")
    epoch = spool.connect(0)
    assert spool.next_unsent(epoch, 0) == "a"
    spool.close()
    before = spool.drained
    assert spool.next_unsent(epoch, 0) == "b"
    assert (before, spool.drained) == (False, True)
    assert len(spool) == 2


def test_a_spool_that_is_open_is_never_drained() -> None:
    assert not make().drained


def test_a_broken_connection_makes_what_was_sent_unsent_again() -> None:
    spool = make("a", "b")
    epoch = spool.connect(0)
    assert [spool.next_unsent(epoch, 0), spool.next_unsent(epoch, 0)] == ["a", "b"]
    spool.close()
    before = spool.drained
    spool.disconnect()
    again = spool.connect(1)
    assert (before, spool.drained) == (True, False)
    assert spool.next_unsent(again, 0) == "b"
