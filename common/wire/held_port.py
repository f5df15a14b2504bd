"""A port that this program keeps while the process that listens on it is started again."""

from __future__ import annotations

import socket
from contextlib import ExitStack


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
