"""Ports: the first of several that is free, and one that is kept while the process that listens there starts again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

from common.errors import AddressError

_Place = TypeVar("_Place")
_Listener = TypeVar("_Listener")


def listen_at_first(places: Sequence[_Place], listen: Callable[[_Place], _Listener]) -> _Listener:
    """Listen at the first of several places that no other program has.

    Raises:
        AddressError: ``listen`` raised it for all places.
    """
    *others, last = places
    for place in others:
        with suppress(AddressError):
            return listen(place)
    try:
        return listen(last)
    except AddressError as error:
        raise AddressError(f"{error}; name another port, or port 0 for a free one") from error


def hold_port(port: int) -> socket.socket:
    """A socket that is bound to a port on all interfaces and does not listen.

    While it is open, the kernel gives the port to no connection and to no program that asks for any free port. A server
    of ours can still listen there, since gRPC's sockets and this one set SO_REUSEADDR (socket(7)).

    Args:
        port: the number of the port; 0 takes any free port.

    Raises:
        OSError: another program has the port.
    """
    is_dual = socket.has_dualstack_ipv6()
    with ExitStack() as stack:
        held = stack.enter_context(socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET))
        if is_dual:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
        stack.pop_all()
    return held
