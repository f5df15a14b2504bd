"""Whose sockets they are: loopback belongs to all users of a host, so an address on it proves nothing by itself.

Linux lists the sockets of the network namespace, with the uid of the process that made each of them, in
``/proc/net/tcp`` and ``/proc/net/tcp6`` (proc(5)).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from common.wire.address import is_loopback, split_address, split_peer

Address: TypeAlias = IPv4Address | IPv6Address
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
_LOOPBACK: Final = ("127.0.0.1", "::1")
_ROOT: Final = 0


class _Socket(NamedTuple):
    host: Address
    port: int
    remote_port: int
    is_listening: bool
    uid: int


def find_listeners(address: str) -> frozenset[int]:
    """The uids of all sockets that listen at a loopback HOST:PORT; empty if nobody listens, or Linux does not say."""
    host, port = split_address(address)
    hosts = {ipaddress.ip_address(text) for text in (_LOOPBACK if host == "localhost" else (host,))}
    found = (socket for socket in _read_sockets() if socket.is_listening and socket.port == port)
    return frozenset(socket.uid for socket in found if socket.host in hosts or socket.host.is_unspecified)


def is_listening(address: str) -> bool:
    """Whether HOST:PORT is on loopback, and Linux shows that somebody listens there."""
    return is_loopback(split_address(address)[0]) and bool(find_listeners(address))


def is_own_host(address: str, *, listened: bool = False) -> bool:
    """Whether HOST:PORT is on loopback, and this user or root listens there: such a learner could run any code anyway.

    An address at which Linux shows no listener may lead anywhere, for example into a container.

    Args:
        address: of a learner that has answered.
        listened: whether somebody listened there before it answered.

    Raises:
        ConnectionResetError: somebody did, and nobody listens there any more. The learner has ended since it answered,
            and whose it was can no longer be known.
    """
    if not is_loopback(split_address(address)[0]):
        return False
    uids = find_listeners(address)
    if listened and not uids:
        raise ConnectionResetError(f"{address}: the learner has answered, and nobody listens there since")
    return bool(uids) and not find_strangers(uids)


def find_strangers(uids: frozenset[int]) -> frozenset[int]:
    """The uids that are neither this user nor root."""
    return uids - {os.geteuid(), _ROOT}


def is_strangers_peer(peer: str, port: int) -> bool:
    """Whether another user of this host, not root, has opened a connection to this process.

    Args:
        peer: gRPC's name of the other end.
        port: at which this process listens.
    """
    host, peer_port = split_peer(peer)
    if not host or not _unmap(ipaddress.ip_address(host)).is_loopback:
        return False
    here = (_unmap(ipaddress.ip_address(host)), peer_port, port)
    found = (s.uid for s in _read_sockets() if not s.is_listening and (s.host, s.port, s.remote_port) == here)
    return bool(find_strangers(frozenset(found)))


def _read_sockets() -> Iterator[_Socket]:
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # A kernel without IPv6, or not Linux: nothing is known of such sockets.
            continue
        for line in lines:
            _, local, remote, state, _, _, _, uid, *_ = line.split()
            host, _, port = local.partition(":")
            remote_port = int(remote.partition(":")[2], 16)
            yield _Socket(_parse_host(host), int(port, 16), remote_port, state == _LISTENS, int(uid))


def _parse_host(text: str) -> Address:
    """An address as the tables have it: each 32-bit word in hexadecimal, in the host's byte order (little-endian)."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return _unmap(ipaddress.ip_address(b"".join(words)))


def _unmap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, as an IPv6 socket sees peers of IPv4; or the address itself."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
