"""A bounded queue of messages that are kept until they are acknowledged. No sockets.

Producer: ``put`` (waits while the spool is full or the other side holds back). Sender: ``connect``, ``next_unsent``,
``acknowledge``, ``disconnect``. A message that was sent but not acknowledged is sent again after ``connect``.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.clocks import Deadline

MessageT = TypeVar("MessageT")


@dataclass(frozen=True)
class _Entry(Generic[MessageT]):
    seq: int
    size: int
    message: MessageT


class Spool(Generic[MessageT]):
    """Thread-safe; sequence numbers 1, 2, 3, … are given in the order of ``put``.

    Args:
        max_bytes: kept at most, while connected or not.
        window: unacknowledged messages at most while connected.
    """

    def __init__(self, max_bytes: int, window: int) -> None:
        self._max_bytes, self._window = max_bytes, window
        self._changed = threading.Condition()
        self._entries: deque[_Entry[MessageT]] = deque()
        self._bytes = 0
        self._last_seq = 0
        self._sent_seq = 0
        self._epoch = 0
        self._connected = False
        self._closed = False

    def next_seq(self) -> int:
        """The sequence number that the next message will have."""
        return self._last_seq + 1

    def put(self, message: MessageT, size: int, seconds: float) -> bool:
        """Add a message; False if there was no room for it within ``seconds``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._has_room(size), seconds):
                return False
            self._last_seq += 1
            self._entries.append(_Entry(self._last_seq, size, message))
            self._bytes += size
            self._changed.notify_all()
            return True

    def _has_room(self, size: int) -> bool:
        if self._connected and len(self._entries) >= self._window:
            return False
        return not self._entries or self._bytes + size <= self._max_bytes

    def connect(self, last_seq: int) -> int:
        """A new connection, whose other side has everything up to ``last_seq``; its epoch."""
        with self._changed:
            self._drop(last_seq)
            self._sent_seq = last_seq
            self._epoch += 1
            self._connected = True
            return self._epoch

    def disconnect(self) -> None:
        with self._changed:
            self._connected = False
            self._epoch += 1
            self._changed.notify_all()

    def next_unsent(self, epoch: int, seconds: float) -> MessageT | None:
        """The next message to send on the connection of ``epoch``; None if there was none within ``seconds``."""
        deadline = Deadline(seconds)
        with self._changed:
            while epoch == self._epoch:
                entry = self._first_unsent()
                if entry is not None:
                    self._sent_seq = entry.seq
                    return entry.message
                if self._closed or deadline.passed():
                    return None
                self._changed.wait(deadline.remaining())
            return None

    def _first_unsent(self) -> _Entry[MessageT] | None:
        if not self._entries:
            return None
        index = max(0, self._sent_seq + 1 - self._entries[0].seq)
        return self._entries[index] if index < len(self._entries) else None

    def acknowledge(self, seq: int) -> None:
        """Forget everything up to ``seq``."""
        with self._changed:
            self._drop(seq)

    def _drop(self, seq: int) -> None:
        while self._entries and self._entries[0].seq <= seq:
            self._bytes -= self._entries.popleft().size
        self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will be put: ``next_unsent`` no longer waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def drained(self) -> bool:
        """Closed, and everything has been sent."""
        with self._changed:
            return self._closed and self._first_unsent() is None

    def is_current(self, epoch: int) -> bool:
        with self._changed:
            return epoch == self._epoch

    @property
    def n_bytes(self) -> int:
        """Bytes not acknowledged yet."""
        return self._bytes

    def __len__(self) -> int:
        """Messages not acknowledged yet."""
        with self._changed:
            return len(self._entries)
