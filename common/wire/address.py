"""HOST:PORT, as it is written in configurations and on command lines."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote

from common.errors import ConfigError

MOST_PORT: Final = 65_535
"""The highest port of TCP."""


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT into host and port; an IPv6 host stands in brackets.

    Raises:
        ConfigError: ``address`` is no HOST:PORT.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s]+)):([0-9]{1,5})", address)
    if found is None or int(found[3]) > MOST_PORT or not (found[1] or _is_name(found[2])):
        raise ConfigError(f"address: expected HOST:PORT or [IPv6]:PORT, found '{address}'")
    return found[1] or found[2], int(found[3])


def _is_name(host: str) -> bool:
    """Whether a host can be looked up: ``socket.getaddrinfo`` raises UnicodeError for a name that no host can have."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    """HOST:PORT, the inverse of ``split_address``."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def split_peer(peer: str) -> tuple[str, int]:
    """Host and port in gRPC's name of a peer, without brackets and zone; an empty host if the name has none.

    >>> split_peer("ipv4:10.0.0.5:50123"), split_peer("ipv6:%5Bfe80::7%25eth0%5D:1")
    (('10.0.0.5', 50123), ('fe80::7', 1))
    """
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return "", 0
    return host.strip("[]").partition("%")[0], int(port)


def name_peer(host: str, port: int) -> str:
    """The other end of a connection, as gRPC names it: the inverse of ``split_peer``."""
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def peer_address(peer: str) -> str:
    """The address in gRPC's name of a peer; for IPv6 the /64, within which one host may choose any address.

    >>> peer_address("ipv4:10.0.0.5:50123"), peer_address("ipv6:%5B2001:db8::7:1%5D:50123")
    ('10.0.0.5', '2001:db8::/64')
    """
    host, _ = split_peer(peer)
    if not peer.startswith("ipv6"):
        return host
    # A socket that listens on [::] sees IPv4 peers under mapped addresses.
    mapped = ipaddress.IPv6Address(host).ipv4_mapped
    return str(mapped or ipaddress.ip_network((host, 64), strict=False))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
