"""Bounds the connections whose callers are not known yet, from the moment at which they are accepted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from common.wire.address import name_peer, peer_address
from learner.ingest.limits import YieldingPlaces

LEAST_STRANGERS: Final = 128
"""More than an event loop accepts at once (100), or a host's clients that come back together would end each other."""
_MOST_MILLISECONDS: Final = (1 << 31) - 1
"""Of ``TCP_USER_TIMEOUT``."""


class StrangersListener(socket.socket):
    """A listening socket that counts what it accepts, until TLS, HTTP and a token have shown who calls.

    One connection more than ``most`` ends the oldest of the address that has most of them. So connections that say
    nothing keep no client out, and take no more memory than so many do.

    Args:
        host: on which it listens; of several addresses the first of IPv4.
        port: on which it listens; 0 takes a free one.
        unread_seconds: a connection ends if its client reads nothing for this long.
        most: connections at one time; as many as there are clients, which may all come back at once from one address.
        on_hang_up: is called with the address of a connection that has to end.

    Raises:
        OSError: the address is taken.
    """

    def __init__(
        self, host: str, port: int, unread_seconds: float, most: int, on_hang_up: Callable[[str], None]
    ) -> None:
        family, *_, address = min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
        with socket.create_server(address[:2], family=family) as plain:
            super().__init__(plain.family, plain.type, plain.proto, plain.detach())
        # The connections inherit it. In this process, everything that sends would wait for a client that reads nothing.
        milliseconds = min(max(1, int(1000 * unread_seconds)), _MOST_MILLISECONDS)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._accepted = WeakSet[socket.socket]()
        self._places, self._on_hang_up = YieldingPlaces(most), on_hang_up
        self._held = dict[Any, tuple[socket.socket, object]]()
        """By the address of its other end: each connection, and its place."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as a server's event loop asks for it."""
        connection, end = super().accept()
        self._accepted.add(connection)
        for other, (held, _) in tuple(self._held.items()):
            if held.fileno() < 0:  # It has ended before anybody knew who called.
                self.release(other)
        account = peer_address(name_peer(*end[:2]))
        self._held[end] = connection, self._places.take(account, partial(self._give_up, connection, account))
        return connection, end

    def _give_up(self, connection: socket.socket, account: str) -> None:
        self._on_hang_up(account)
        _hang_up(connection)

    def release(self, end: Any) -> None:
        """Count a connection no longer, since its caller is known or it has ended."""
        if end in self._held:
            self._places.release(self._held.pop(end)[1])

    def hang_up(self) -> None:
        """End all connections that were accepted and have not ended."""
        for connection in self._accepted:
            _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    """End a connection; its transport in the event loop notices it, and closes it."""
    with suppress(OSError):  # The other end has hung up at this moment.
        connection.shutdown(socket.SHUT_RDWR)
