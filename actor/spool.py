"""A bounded queue of messages that are kept until the other side has acknowledged them. No sockets.

A producer calls ``put``, which waits while the spool is full or the other side holds back. A sender calls ``connect``,
``next_unsent``, ``acknowledge`` and ``disconnect``, and ``renumber`` when the other side has lost messages that it had
acknowledged. A message is in one of two states:

- **unsent**: it has no number, so it may be dropped and leaves no gap.
- **sent**: it is in a group of one or more messages that travel together under one number. After a broken connection
  the same group is sent again under the same number. It is never dropped, because the other side may have stored it.

Messages are grouped because each transfer costs both sides as much as hundreds of rows do.

A group knows whether messages were dropped before it, and says the same when it is sent again: the other side must not
take its first message for the continuation of the group before.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from common.process.clocks import Deadline

MessageT = TypeVar("MessageT")
ALONE: Final = 1 << 62
"""A number of rows that no group may have: a message with this number waits for no other and travels alone."""


@dataclass(frozen=True)
class _Unsent(Generic[MessageT]):
    message: MessageT
    size: int
    rows: int
    put_at: float


@dataclass(frozen=True)
class MessageGroup(Generic[MessageT]):
    """Messages that travel together under one number.

    Args:
        messages: in the order of ``put``.
        size: bytes that they count for.
        put_at: when the first of them was put.
        after_drop: whether messages were dropped between the group before and this one.
    """

    messages: list[MessageT]
    size: int
    put_at: float
    after_drop: bool


class Spool(Generic[MessageT]):
    """Thread-safe. Groups are numbered 1, 2, 3, … and messages stay in the order of ``put``.

    Args:
        max_bytes: bytes that are kept at most, connected or not. One larger message is taken if it is the only one.
        window: messages that may be unacknowledged while connected.
        group_rows: rows that a group of several messages has at most; 0 sends each message by itself. The attribute
            may be changed at any time.
        linger: seconds after a group in which messages with fewer rows than ``group_rows`` wait for more.
        drop_oldest: while disconnected and full, drop the oldest unsent messages rather than let the producer wait.
        on_drop: called with each message that is dropped, under the spool's lock, so it must not call the spool.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        max_bytes: int,
        window: int,
        *,
        group_rows: int = 0,
        linger: float = 0.0,
        drop_oldest: bool = False,
        on_drop: Callable[[MessageT], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self._window = max_bytes, window
        self.group_rows, self._linger = group_rows, linger
        self.grace = 0.0
        """Seconds; may be changed at any time. While all unacknowledged messages are younger, the producer may exceed
        ``window`` until the unsent messages fill two groups: so a quick one need not wait for each acknowledgement."""
        self._drop_oldest, self._on_drop, self._clock = drop_oldest, on_drop, clock
        # Two conditions on one lock: an acknowledgement wakes the producer, which waits for room, and not the sender.
        self._lock = threading.Lock()
        self._room, self._work = threading.Condition(self._lock), threading.Condition(self._lock)
        self._unsent: deque[_Unsent[MessageT]] = deque()
        self._unsent_rows = 0
        self._has_dropped = False  # Messages were dropped between the last group and the oldest unsent message.
        self._groups: deque[MessageGroup[MessageT]] = deque()  # The first has the number ``_acked + 1``.
        self._grouped_messages = 0
        self._group_bytes = 0
        self._bytes = 0  # Of groups and unsent messages.
        self._acked = 0
        self._n_sent_here = 0  # Groups that went out on the present connection: the first ones of ``_groups``.
        self._grouped_at = -math.inf
        self._epoch = 0
        self._lacks_room = False  # The producer's last try found no room.
        self._connected = False
        self._is_held = False
        self._closed = False

    def put(self, message: MessageT, size: int, rows: int, seconds: float) -> bool:
        """Add a message; return False, without it, if there was no room in time.

        Args:
            message: not looked at.
            size: bytes that it counts for.
            rows: rows that it adds to a group, or ``ALONE``.
            seconds: to wait for room.
        """
        with self._lock:
            if not self._make_room(size):
                self._lacks_room = True
                if self._unsent:  # Unsent messages waited for more, which cannot come: the sender takes them now.
                    self._work.notify_all()
                if not self._room.wait_for(lambda: self._make_room(size), seconds):
                    return False
            self._lacks_room = False
            self._unsent.append(_Unsent(message, size, rows, self._clock()))
            self._bytes += size
            self._unsent_rows += rows
            if not self._waits_for_more():  # Else the sender would wake only to wait again.
                self._work.notify_all()
            return True

    def _make_room(self, size: int) -> bool:
        """Drop messages that may be dropped for a message of ``size`` bytes; return whether it has room now."""
        if self._connected and self._window_is_full():
            return False
        # Groups are never dropped, so unsent messages are dropped only if that makes enough room.
        if self._drop_oldest and not self._connected and self._fits(size, self._group_bytes):
            while not self._fits(size, self._bytes):
                self._drop()
        return self._fits(size, self._bytes)

    def _window_is_full(self) -> bool:
        if self._is_held and self._unsent:
            return True
        if self._grouped_messages + len(self._unsent) < self._window:
            return False
        if self._unsent_rows >= 2 * self.group_rows:
            return True  # The sender has enough to do, and more messages would only grow old.
        oldest = self._groups[0] if self._groups else self._unsent[0]
        return oldest.put_at <= self._clock() - self.grace

    def _fits(self, size: int, kept: int) -> bool:
        return not kept or kept + size <= self._max_bytes

    def _drop(self) -> None:
        unsent = self._unsent.popleft()
        self._bytes -= unsent.size
        self._unsent_rows -= unsent.rows
        self._has_dropped = True
        self._room.notify_all()
        self._on_drop(unsent.message)

    def wait_for_room(self, size: int, seconds: float) -> bool:
        """Wait until a message of ``size`` bytes has room; False if it has none in time. Messages may be dropped."""
        with self._lock:
            return self._room.wait_for(lambda: self._make_room(size), seconds)

    def wait_until_younger(self, age: float, seconds: float) -> bool:
        """Wait until no message has been unacknowledged for ``age`` seconds; False if there is one after ``seconds``.

        While disconnected, nobody can acknowledge, so there is nothing to wait for.
        """
        with self._lock:
            return self._room.wait_for(lambda: not self._connected or self._oldest_age() < age, seconds)

    def _oldest_age(self) -> float:
        oldest = self._groups or self._unsent
        return self._clock() - oldest[0].put_at if oldest else 0.0

    def connect(self) -> int:
        """Begin a connection, on which every group goes out that was not acknowledged; return the connection's epoch.

        The other side may have stored some of these groups. It compares them with those that it has: groups under the
        same numbers may be those of a clone of this process.
        """
        with self._lock:
            self._n_sent_here = 0
            self._is_held = False
            self._epoch += 1
            self._connected = True
            self._work.notify_all()
            return self._epoch

    def renumber(self) -> None:
        """Number the groups that were not acknowledged from 1 again.

        Only while disconnected: a connection carries the former numbers.
        """
        with self._lock:
            assert not self._connected
            self._acked = self._n_sent_here = 0

    def disconnect(self) -> None:
        with self._lock:
            self._connected = False
            self._epoch += 1
            self._room.notify_all()
            self._work.notify_all()

    def next_unsent(self, epoch: int, seconds: float) -> tuple[int, MessageGroup[MessageT]] | None:
        """The next group that has not gone out on the connection of ``epoch``, and its number.

        Returns None if there is none within ``seconds``, if the spool is closed and has no more, or if that connection
        is over. The thread that serves an old connection may still be in this call while another thread connects
        again. The epoch tells the two apart, so that no group goes out on a connection whose acknowledgements are not
        heard.
        """
        deadline = Deadline(seconds)
        with self._lock:
            while epoch == self._epoch:
                if self._n_sent_here == len(self._groups):
                    self._add_group()
                if self._n_sent_here < len(self._groups):
                    self._n_sent_here += 1
                    return self._acked + self._n_sent_here, self._groups[self._n_sent_here - 1]
                if self._closed or deadline.passed():
                    return None
                linger = self._remaining_linger() if self._unsent and not self._is_held else math.inf
                self._work.wait(min(deadline.remaining(), linger))
            return None

    def _add_group(self) -> None:
        """Make a group of the oldest unsent messages, unless there are none, or they wait for more or are held."""
        if not self._unsent or self._waits_for_more() or (self._is_held and not self._closed):
            return
        members = [self._unsent.popleft()]
        rows = members[0].rows
        while self._unsent and rows + self._unsent[0].rows <= self.group_rows:
            members.append(self._unsent.popleft())
            rows += members[-1].rows
        size = sum(unsent.size for unsent in members)
        group = MessageGroup([unsent.message for unsent in members], size, members[0].put_at, self._has_dropped)
        self._has_dropped = False
        self._groups.append(group)
        self._group_bytes += group.size
        self._grouped_messages += len(group.messages)
        self._unsent_rows -= rows
        self._grouped_at = self._clock()

    def _waits_for_more(self) -> bool:
        """Whether the unsent messages stay a moment longer, so that later ones can travel with them.

        They stay while the group before them is younger than ``linger`` seconds and they have fewer rows than a group
        may have. They do not stay when nothing can be added to them: the producer has found no room for its next
        message, or the spool is closed. After a pause the first message goes out at once, whatever its size, so a slow
        producer pays no delay and a fast one saves most of its transfers.
        """
        is_enough = self._closed or self._lacks_room or self._unsent_rows >= self.group_rows
        return not is_enough and self._remaining_linger() > 0

    def _remaining_linger(self) -> float:
        return max(0.0, self._grouped_at + self._linger - self._clock())

    def hold(self, is_held: bool) -> None:
        """Hold messages back, or let them go on: while they are held, one may be put, and no group is made.

        A new connection holds nothing, and a closed spool neither.
        """
        with self._lock:
            if self._is_held and not is_held:
                self._room.notify_all()
                self._work.notify_all()
            self._is_held = is_held

    def acknowledge(self, seq: int) -> None:
        """Forget every group up to number ``seq``."""
        with self._lock:
            while self._groups and self._acked < seq:
                group = self._groups.popleft()
                self._bytes -= group.size
                self._group_bytes -= group.size
                self._grouped_messages -= len(group.messages)
                self._acked += 1
                self._n_sent_here = max(0, self._n_sent_here - 1)
            self._room.notify_all()

    def unacknowledged(self) -> list[MessageT]:
        """The messages that are not acknowledged, in the order of ``put``."""
        with self._lock:
            grouped = [message for group in self._groups for message in group.messages]
            return grouped + [unsent.message for unsent in self._unsent]

    def close(self) -> None:
        """Say that nothing more will be put: ``next_unsent`` gives out the rest and no longer waits."""
        with self._lock:
            self._closed = True
            self._work.notify_all()

    @property
    def drained(self) -> bool:
        """Whether the spool is closed and everything has been sent on the present connection."""
        with self._lock:
            return self._closed and not self._unsent and self._n_sent_here == len(self._groups)

    @property
    def acknowledged(self) -> int:
        """The highest number that was acknowledged."""
        return self._acked

    @property
    def numbered(self) -> int:
        """The highest number that a message of this spool has had."""
        with self._lock:
            return self._acked + len(self._groups)

    @property
    def connected(self) -> bool:
        return self._connected

    def is_current(self, epoch: int) -> bool:
        """Whether the connection of ``epoch`` is the present one."""
        with self._lock:
            return epoch == self._epoch

    @property
    def n_bytes(self) -> int:
        """Bytes of all messages that are not acknowledged."""
        return self._bytes

    def __len__(self) -> int:
        """Messages that are not acknowledged."""
        with self._lock:
            return self._grouped_messages + len(self._unsent)
