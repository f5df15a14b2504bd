"""What one actor, connection or address may take while others need it too. Decisions without I/O; the clock is given.

Nobody is refused for being fast: an actor over its quota waits a little longer for its own acknowledgement or model.
Only actor ids are refused, since an id cannot be shared.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from common.data import ModelVersion
from common.errors import CrossborderError

BATCHES_PER_REPLAY = 16
"""One batch replaces at most this fraction of the replay, so that one message cannot push out what others brought."""
ACTIVE_SECONDS = 10.0
"""The quotas leave out an actor that stored nothing for this long."""
RENEWAL_SECONDS = 60.0
"""An actor beyond its share needs at least this long to replace the whole replay."""
REPEATS_PER_SECOND, REPEATS_AT_ONCE = 1.0, 5.0
"""Requests of one connection for a model that it has been answered with already."""
MAX_CONNECTIONS = 8192
"""Connections that are remembered; ``server.limits.max_connections`` is as much at most unless it is configured."""


class ReplayShare:
    """How much of the replay one actor may fill while others store too.

    The window is the last ``capacity`` items, as an exponential mean: of ``capacity`` later items, an item counts 1/e.
    An actor that holds more of the window than ``multiple`` times the mean of the other active actors may go on at one
    capacity per ``RENEWAL_SECONDS``. It never waits for the others, so an actor that pauses stalls nobody.

    Args:
        capacity: items that the replay holds.
        multiple: see above; None bounds nobody.
        clock: seconds, monotonic.
    """

    def __init__(self, capacity: int, multiple: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity, self._multiple, self._clock = capacity, multiple or math.inf, clock
        self._inserted = 0
        self._window: dict[int, tuple[float, int]] = {}
        """By actor: its items in the window, and the number of all items when they were counted."""
        self._active = OrderedDict[int, float]()
        """When each active actor stored last, the longest ago first."""
        self._free_at: dict[int, float] = {}

    def stored(self, actor: int, rows: int) -> None:
        """Note a batch of the actor in this row of the actor table."""
        now = self._clock()
        self._inserted += rows
        self._note_active(actor, now)
        held, counted_at = self._window.get(actor, (0.0, self._inserted))
        held = held * math.exp((counted_at - self._inserted) / self._capacity) + rows
        self._window[actor] = held, self._inserted
        if held > self._capacity * self._share():
            begin = max(now, self._free_at.get(actor, now))
            self._free_at[actor] = begin + rows * RENEWAL_SECONDS / self._capacity

    def pause(self, actor: int) -> float:
        """Seconds that the actor must still wait; 0 for none."""
        free_at = self._free_at.get(actor)
        if free_at is None:
            return 0.0
        left = free_at - self._clock()
        if left <= 0:
            del self._free_at[actor]
        return max(0.0, left)

    def _note_active(self, actor: int, now: float) -> None:
        self._active[actor] = now
        self._active.move_to_end(actor)
        while next(iter(self._active.values())) < now - ACTIVE_SECONDS:
            self._active.popitem(last=False)

    def _share(self) -> float:
        """The part of the window that one actor may hold; an actor alone may hold all of it."""
        others = len(self._active) - 1
        return self._multiple / (self._multiple + others) if others and self._multiple < math.inf else math.inf


class ModelRepeats:
    """How often one connection may ask again while there is no model that it has not been answered with.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked = OrderedDict[str, tuple[ModelVersion, float]]()
        """By connection: the model of its last answer, and the time until which its repeats are spent."""

    def delay(self, connection: str, newest: ModelVersion) -> float:
        """Count a request; the seconds that its answer must wait."""
        now = self._clock()
        version, spent_until = self._asked.get(connection, (None, 0.0))
        if version == newest:
            spent_until = max(spent_until, now) + 1 / REPEATS_PER_SECOND
        self._asked[connection] = newest, spent_until
        self._asked.move_to_end(connection)
        if len(self._asked) > MAX_CONNECTIONS:
            self._asked.popitem(last=False)
        return max(0.0, spent_until - now - REPEATS_AT_ONCE / REPEATS_PER_SECOND) if version == newest else 0.0


class TooManyOfAddressError(CrossborderError):
    """The actors at one address hold as many ids as one address may."""


class AddressIds:
    """How many actor ids the actors at one address may hold.

    Args:
        at_most: ids for one address.
        holds_id: whether an incarnation holds an id now.
    """

    def __init__(self, at_most: int, holds_id: Callable[[int], bool]) -> None:
        self._at_most, self._holds_id = at_most, holds_id
        self._address: dict[int, str] = {}
        """By incarnation; those that are gone are forgotten when there are twice as many as before."""
        self._forget_at = 64

    def require_room(self, address: str, incarnation: int, former: int = 0) -> None:
        """Check that the incarnation may join from this address, maybe in the place of a former one.

        Raises:
            TooManyOfAddressError: other incarnations at the address hold as many ids as it may.
        """
        here = (other for other, its in self._address.items() if its == address and other not in (incarnation, former))
        if sum(map(self._holds_id, here)) >= self._at_most:
            raise TooManyOfAddressError(f"the actors at {address} hold {self._at_most} actor ids")

    def joined(self, address: str, incarnation: int) -> None:
        """Note that the incarnation has joined, the last time from this address."""
        self._address[incarnation] = address
        if len(self._address) >= self._forget_at:
            self._address = {one: its for one, its in self._address.items() if self._holds_id(one)}
            self._forget_at = max(64, 2 * len(self._address))
