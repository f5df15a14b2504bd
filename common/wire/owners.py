"""Whose sockets they are: loopback belongs to all users of a host, so an address on it proves nothing by itself.

Linux knows the sockets of the network namespace, with the uid of the process that made each of them. It tells those of
one pair of ports by netlink (sock_diag(7)), in a millisecond beside thousands of connections. Where it does not, as in
some sandboxes, ``/proc/net/tcp`` and ``/proc/net/tcp6`` list all of them (proc(5)), which takes far longer.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from common.wire.address import is_loopback, split_address, split_peer

Address: TypeAlias = IPv4Address | IPv6Address
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_AF_NETLINK, _SOCK_DIAG = 16, 4
"""Linux alone has them, and Python names the first there only."""
_DIAG_SECONDS: Final = 1.0
_BY_FAMILY, _REQUEST_DUMP, _ERROR, _DONE = 20, 0x301, 2, 3
_HEADER: Final = struct.Struct("=IHHII")
"""nlmsghdr: size, kind, flags, number, port."""
_REQUEST: Final = struct.Struct("=BBBBI2s2s44x")
"""inet_diag_req_v2: family, protocol, extensions, padding, states, and the ports; their addresses are left out."""
_FOUND: Final = struct.Struct("=B3x2s2s16s16x12x12xII")
"""inet_diag_msg: family, the ports and the source address, the uid and the inode."""
_LISTENS: Final = 10
"""TCP_LISTEN."""
_LOOPBACK: Final = ("127.0.0.1", "::1")
_ROOT: Final = 0
_CLOSED: Final = -1
"""The uid of a socket that its process has closed: Linux shows it as root's. Whoever waits for an answer has not."""


class _Socket(NamedTuple):
    host: Address
    uid: int


def find_listeners(address: str) -> frozenset[int]:
    """The uids of all sockets that listen at a loopback HOST:PORT; empty if nobody listens, or Linux does not say."""
    host, port = split_address(address)
    hosts = {ipaddress.ip_address(text) for text in (_LOOPBACK if host == "localhost" else (host,))}
    return frozenset(found.uid for found in _find_sockets(port) if found.host in hosts or found.host.is_unspecified)


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
    """Whether another user of this host, not root, has opened a connection to this process."""
    return bool(find_strangers(find_peer_owners(peer, port)))


def find_peer_owners(peer: str, port: int) -> frozenset[int]:
    """The uids of this host's sockets at the other end of a connection to this process; empty if Linux shows none.

    A caller on this host may give its connection any address of this host, also one that is not loopback.
    """
    host, peer_port = split_peer(peer)
    if not host:
        return frozenset()
    here = _unmap(ipaddress.ip_address(host))
    return frozenset(found.uid for found in _find_sockets(peer_port, port) if found.host == here)


def _find_sockets(port: int, remote_port: int = 0) -> list[_Socket]:
    """The sockets with this port that are connected to a remote port; with 0, those that listen."""
    try:
        return [*_ask_kernel(port, remote_port)]
    except OSError:  # A kernel or a sandbox without sock_diag.
        return [*_read_tables(port, remote_port)]


def _ask_kernel(port: int, remote_port: int) -> Iterator[_Socket]:
    """See ``_find_sockets``.

    Raises:
        OSError: Linux does not tell it by netlink.
    """
    states = 1 << _LISTENS if remote_port == 0 else 0xFFF & ~(1 << _LISTENS)
    ports = port.to_bytes(2, "big"), remote_port.to_bytes(2, "big")
    with socket.socket(_AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_DIAG_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, states, *ports)
            netlink.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + asked)
            yield from map(_parse_found, _receive(netlink))


def _receive(netlink: socket.socket) -> Iterator[bytes]:
    """The messages that answer a request, without their headers."""
    while True:
        rest = netlink.recv(1 << 16)
        while rest:
            size, kind, *_ = _HEADER.unpack_from(rest)
            body, rest = rest[_HEADER.size : size], rest[(size + 3) & ~3 :]
            if kind in (_ERROR, _DONE):
                (error,) = struct.unpack_from("=i", body) if body else (0,)
                if error:
                    raise OSError(-error, os.strerror(-error))
                return
            yield body


def _parse_found(body: bytes) -> _Socket:
    family, _, _, source, uid, inode = _FOUND.unpack_from(body)
    host = _unmap(ipaddress.ip_address(source if family == socket.AF_INET6 else source[:4]))
    return _Socket(host, uid if inode else _CLOSED)


def _read_tables(port: int, remote_port: int) -> Iterator[_Socket]:
    """See ``_find_sockets``."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # A kernel without IPv6, or not Linux: nothing is known of such sockets.
            continue
        for line in lines:
            _, local, remote, _, _, _, _, uid, _, inode, *_ = line.split()
            host, _, its_port = local.partition(":")
            if int(its_port, 16) == port and int(remote.partition(":")[2], 16) == remote_port:
                yield _Socket(_parse_host(host), int(uid) if int(inode) else _CLOSED)


def _parse_host(text: str) -> Address:
    """An address as the tables have it: each 32-bit word in hexadecimal, in the host's byte order (little-endian)."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return _unmap(ipaddress.ip_address(b"".join(words)))


def _unmap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, as an IPv6 socket sees peers of IPv4; or the address itself."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
