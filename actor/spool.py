"""A bounded queue of messages that are kept until they are acknowledged. No sockets.

Producer: ``put`` (waits while the spool is full or the other side holds back). Sender: ``connect``, ``next_unsent``,
``acknowledge``, ``disconnect``, and ``renumber`` when the other side has lost messages that it had acknowledged. A
message that was sent but not acknowledged is sent again after ``connect``; one that was never sent may be dropped, and
has no number yet. Those that wait go out together, under one number: right after a message, a little is kept back for a
moment until there is more, since each message costs both sides as much as hundreds of rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.process.clocks import Deadline

MessageT = TypeVar("MessageT")


@dataclass(frozen=True)
class _Entry(Generic[MessageT]):
    messages: list[MessageT]
    size: int
    rows: int
    put_at: float


class Spool(Generic[MessageT]):
    """Thread-safe; numbers 1, 2, 3, … are given in the order of ``put``, each when its messages are first sent.

    Args:
        max_bytes: kept at most, while connected or not.
        window: unacknowledged messages at most while connected.
        group_rows: messages of up to this many rows go out together; 0 sends each by itself. May change at any time.
        linger: seconds after a group for which fewer rows than that wait for more.
        max_seconds: a message that was not sent for so long is dropped.
        drop_oldest: while disconnected and full, drop what was never sent, the oldest first, rather than wait.
        on_drop: told of each message that is dropped; must not call the spool.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        max_bytes: int,
        window: int,
        *,
        group_rows: int = 0,
        linger: float = 0.0,
        max_seconds: float = math.inf,
        drop_oldest: bool = False,
        on_drop: Callable[[MessageT], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self._window, self._max_seconds = max_bytes, window, max_seconds
        self.group_rows, self._linger = group_rows, linger
        self._drop_oldest, self._on_drop, self._clock = drop_oldest, on_drop, clock
        self._lock = threading.Lock()
        self._room, self._work = threading.Condition(self._lock), threading.Condition(self._lock)
        """Waited for by who puts, and by who sends: an acknowledgement need not wake the latter."""
        self._sent: deque[_Entry[MessageT]] = deque()  # Number ``_acked + 1`` and those after it.
        self._unsent: deque[_Entry[MessageT]] = deque()
        self._bytes = self._sent_bytes = 0
        self._unsent_rows = 0
        self._grouped_at = -math.inf
        self._n_sent = 0  # Messages in ``_sent``.
        self._acked = 0
        self._on_their_way = 0  # Of those in ``_sent``, as many as were sent on this connection.
        self._epoch = 0
        self._is_wanted = False  # Somebody has something to put, and there is no room.
        self._connected = False
        self._closed = False

    def put(self, message: MessageT, size: int, rows: int, seconds: float) -> bool:
        """Add a message of so many bytes and rows; False if there was no room for it within ``seconds``."""
        with self._lock:
            if not self._make_room(size):
                self._is_wanted = True
                if self._unsent:  # Those that wait for more go out now.
                    self._work.notify_all()
                if not self._room.wait_for(lambda: self._make_room(size), seconds):
                    return False
            self._is_wanted = False
            self._unsent.append(_Entry([message], size, rows, self._clock()))
            self._bytes += size
            self._unsent_rows += rows
            if not self._waits_for_more():  # Otherwise whoever sends would wake in vain.
                self._work.notify_all()
            return True

    def _make_room(self, size: int) -> bool:
        self._drop_stale()
        if self._connected and self._n_sent + len(self._unsent) >= self._window:
            return False
        may_drop = self._drop_oldest and not self._connected
        if may_drop and self._fits(size, self._sent_bytes):
            while not self._fits(size, self._bytes):
                self._drop()
        return self._fits(size, self._bytes)

    def _fits(self, size: int, kept: int) -> bool:
        return not kept or kept + size <= self._max_bytes

    def _drop_stale(self) -> None:
        oldest = self._clock() - self._max_seconds
        while self._unsent and self._unsent[0].put_at <= oldest:
            self._drop()

    def _drop(self) -> None:
        entry = self._unsent.popleft()
        self._bytes -= entry.size
        self._unsent_rows -= entry.rows
        self._room.notify_all()
        self._on_drop(entry.messages[0])

    def connect(self, last_seq: int) -> int:
        """A new connection, whose other side has everything up to ``last_seq``; its epoch."""
        with self._lock:
            self._forget(last_seq)
            self._on_their_way = 0
            self._epoch += 1
            self._connected = True
            self._work.notify_all()
            return self._epoch

    def renumber(self) -> None:
        """Number the messages that were sent and not acknowledged from 1 again, in the same groups.

        Only while disconnected: a connection carries the numbers of before.
        """
        with self._lock:
            assert not self._connected
            self._acked = self._on_their_way = 0

    def disconnect(self) -> None:
        with self._lock:
            self._connected = False
            self._epoch += 1
            self._room.notify_all()
            self._work.notify_all()

    def next_unsent(self, epoch: int, seconds: float) -> tuple[int, list[MessageT]] | None:
        """A number and its messages, to send on the connection of ``epoch``; None if there are none in ``seconds``."""
        deadline = Deadline(seconds)
        with self._lock:
            while epoch == self._epoch:
                if self._on_their_way == len(self._sent):
                    self._number_next()
                if self._on_their_way < len(self._sent):
                    self._on_their_way += 1
                    return self._acked + self._on_their_way, self._sent[self._on_their_way - 1].messages
                if self._closed or deadline.passed():
                    return None
                self._work.wait(min(deadline.remaining(), self._lingers() or math.inf))
            return None

    def _number_next(self) -> None:
        self._drop_stale()
        if not self._unsent or self._waits_for_more():
            return
        group = [self._unsent.popleft()]
        rows = group[0].rows
        while self._unsent and rows + self._unsent[0].rows <= self.group_rows:
            group.append(self._unsent.popleft())
            rows += group[-1].rows
        size, messages = sum(entry.size for entry in group), [entry.messages[0] for entry in group]
        self._grouped_at = self._clock()
        self._sent.append(_Entry(messages, size, rows, group[0].put_at))
        self._sent_bytes += size
        self._unsent_rows -= rows
        self._n_sent += len(messages)

    def _waits_for_more(self) -> bool:
        is_enough = self._closed or self._is_wanted or self._unsent_rows >= self.group_rows
        return not is_enough and self._lingers() > 0

    def _lingers(self) -> float:
        """Seconds for which a little waits for more."""
        return max(0.0, self._grouped_at + self._linger - self._clock())

    def acknowledge(self, seq: int) -> None:
        """Forget everything up to ``seq``."""
        with self._lock:
            self._forget(seq)

    def _forget(self, seq: int) -> None:
        while self._sent and self._acked < seq:
            entry = self._sent.popleft()
            self._bytes -= entry.size
            self._sent_bytes -= entry.size
            self._n_sent -= len(entry.messages)
            self._acked += 1
            self._on_their_way = max(0, self._on_their_way - 1)
        self._room.notify_all()

    def close(self) -> None:
        """Nothing more will be put: ``next_unsent`` no longer waits."""
        with self._lock:
            self._closed = True
            self._work.notify_all()

    @property
    def drained(self) -> bool:
        """Closed, and everything has been sent."""
        with self._lock:
            return self._closed and not self._unsent and self._on_their_way == len(self._sent)

    @property
    def acknowledged(self) -> int:
        """The highest number that was acknowledged."""
        return self._acked

    @property
    def connected(self) -> bool:
        return self._connected

    def is_current(self, epoch: int) -> bool:
        with self._lock:
            return epoch == self._epoch

    @property
    def n_bytes(self) -> int:
        """Bytes not acknowledged yet."""
        return self._bytes

    def __len__(self) -> int:
        """Messages not acknowledged yet."""
        with self._lock:
            return self._n_sent + len(self._unsent)
