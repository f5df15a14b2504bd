"""The addresses of a learner: HOST:PORT, several of them, or a name that stands for several hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import ConfigError
from common.wire.address import join_address, split_address


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
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return []
    try:
        places = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(place[0]) for *_, place in places})
