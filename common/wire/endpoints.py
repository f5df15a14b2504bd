"""The addresses of a learner, HOST:PORT or a name that stands for several hosts, and the port on which it listens."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from common.errors import AddressError, ConfigError
from common.wire.address import join_address, split_address

_Place = TypeVar("_Place")
_Listener = TypeVar("_Listener")


@dataclass(frozen=True)
class Endpoint:
    """One address at which a learner may listen.

    Args:
        address: HOST:PORT to connect to.
        name: the host name that the learner's certificate must have, and by which an actor decides about trust: the
            host of ``address``, or the name that was resolved to it.
    """

    address: str
    name: str

    @property
    def named(self) -> str:
        """HOST:PORT with ``name`` as the host."""
        return join_address(self.name, split_address(self.address)[1])

    @classmethod
    def of(cls, address: str) -> Endpoint:
        """The endpoint at HOST:PORT.

        Raises:
            ConfigError: ``address`` is no HOST:PORT.
        """
        return cls(address, split_address(address)[0])


def split_addresses(text: str) -> list[str]:
    """Split HOST:PORT,HOST:PORT,… into its addresses.

    Raises:
        ConfigError: an address is no HOST:PORT, or is there twice.
    """
    addresses = [part.strip() for part in text.split(",")]
    for address in addresses:
        split_address(address)
        if addresses.count(address) > 1:
            raise ConfigError(f"address: expected each HOST:PORT once, found '{address}' twice")
    return addresses


def find_endpoints(addresses: Sequence[str]) -> list[Endpoint]:
    """Find where the learners at these addresses may be reached, in the order of the list.

    A name that has several IP addresses of one family stands for several hosts, each an endpoint. A name with one
    address, or with one of IPv4 and one of IPv6, is one host. gRPC resolves this name, or a name that has no address
    yet, at every connection.
    """
    return [endpoint for address in addresses for endpoint in _resolve(address)]


def _resolve(address: str) -> list[Endpoint]:
    host, port = split_address(address)
    found = {family: _find_addresses(host, port, family) for family in (socket.AF_INET, socket.AF_INET6)}
    several = next((ips for ips in found.values() if len(ips) > 1), ())
    return [Endpoint(join_address(ip, port), host) for ip in several] or [Endpoint(address, host)]


def _find_addresses(host: str, port: int, family: socket.AddressFamily) -> list[str]:
    """The addresses of a name; of an IP address, at most itself, without a look-up."""
    try:
        places = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(place[0]) for *_, place in places})


def listen_at_first(places: Sequence[_Place], listen: Callable[[_Place], _Listener]) -> _Listener:
    """Listen at the first of several places that no other program has.

    Raises:
        AddressError: ``listen`` raised it for all places.
    """
    *others, last = places
    for place in others:
        with suppress(AddressError):
            return listen(place)
    return listen(last)


def require_free_port(key: str, host: str, port: int) -> None:
    """Check that this process could listen at an address, which the setting ``key`` names; gRPC would not say why not.

    Raises:
        AddressError: it cannot.
    """
    try:
        *others, last = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for place in others:
            with suppress(OSError):
                return _bind(place[0], place[4])
        _bind(last[0], last[4])
    except OSError as error:
        raise AddressError(
            f"{key}: {join_address(host, port)}: cannot listen there: {error.strerror}; "
            "name another port, or port 0 for a free one"
        ) from error


def _bind(family: int, address: Any) -> None:
    with socket.socket(family) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)


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
