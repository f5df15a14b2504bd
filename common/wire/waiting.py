"""Bytes that wait inside gRPC: of messages that are not complete yet, and of answers that their callers do not read.

gRPC for Python bounds these bytes for each call, but not their sum, and some of them belong to callers who have not
shown a token yet. So a server (ingest, a relay) works out what each connection makes it keep: the bytes that the kernel
has handed over for the connection, less the bytes of the messages that were read, plus the bytes that are being
written. Beyond the bound, it hangs up connections of the account that makes it keep most, the largest connection first.
An actor whose connection was ended joins again, and sends again what was not acknowledged.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
import struct
import termios
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias
from weakref import finalize

from common.process.log import LogThrottle
from common.wire.address import join_address, split_peer

log = logging.getLogger(__name__)
End: TypeAlias = tuple[str, int]
"""Host and port of the other end of a connection."""
LOGGED_EVERY: Final = 10.0
FRAMING: Final = 0.01
"""The bytes of frames and TLS beside those of large messages, as a part of the messages' bytes, rounded up."""
FRAMING_BYTES: Final = 256
"""The bytes of frames, TLS and answers' flow control beside those of one message, rounded up."""
FIRST_PRUNE: Final = 1024
_TCP_INFO: Final = 11
"""Linux alone has it, and Python names it there only."""
_RECEIVED_AT: Final = 128
"""Where ``struct tcp_info`` has ``tcpi_bytes_received``, 8 bytes."""
_OPEN: Final = Path("/proc/self/fd")


class Traffic:
    """What a server has read from one connection, and is writing to it or passing on for it."""

    def __init__(self, account: str) -> None:
        self.account = account
        self._messages = self._read = self.writing_bytes = 0

    def note_read(self, n_bytes: int) -> None:
        """Count a message that was read whole."""
        self._messages += 1
        self._read += n_bytes

    @contextmanager
    def writing(self, n_bytes: int) -> Iterator[None]:
        """Count a message as waiting while it is being written."""
        self.writing_bytes += n_bytes
        try:
            yield
        finally:
            self.writing_bytes -= n_bytes

    def waiting(self, received: int) -> int:
        """The bytes that wait, if so many were received.

        The framing is rounded up, so that a connection that has sent much for days does not seem to hold bytes.
        """
        if received < self._read:  # An earlier connection from the same port has ended, whose messages count no more.
            self._messages = self._read = 0
        done = self._read * (1 + FRAMING) + self._messages * FRAMING_BYTES
        return max(0, int(received - done)) + self.writing_bytes


class WaitingBytes:
    """Bounds the bytes that wait for all connections together; ``name`` says in the log whose connections they are."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        """It stays open, so that the memory is known even while no file descriptor is free."""
        finalize(self, os.close, self._statm)
        self._used_at_start = self._own_memory()
        self._known = dict[End, Traffic]()
        """By the other end of the connection. Those that have ended are dropped whenever the dictionary has doubled."""
        self._prune_at = FIRST_PRUNE
        self._port = 0
        self._hang_ups = LogThrottle(LOGGED_EVERY)
        self.hung_up = 0
        """Connections that were ended."""

    def serve_on(self, port: int) -> None:
        """Watch the connections to this port."""
        self._port = port

    def connection(self, peer: str, account: str, *, is_named: bool) -> Traffic:
        """The connection of a call.

        Args:
            peer: gRPC's name of the other end.
            account: under which the connection counts.
            is_named: whether the account has proved its name. Health checks on the same connection may come without.
        """
        end = split_peer(peer)
        known = self._known.get(end)
        if known is None:
            if len(self._known) >= self._prune_at:
                live = {end for end, _ in _connections(self._port)}
                self._known = {end: one for end, one in self._known.items() if end in live}
                self._prune_at = max(FIRST_PRUNE, 2 * len(self._known))
            known = self._known[end] = Traffic(account)
        elif is_named:
            known.account = account
        return known

    def tick(self) -> None:
        """Hang up connections while too many bytes wait; called a few times a second.

        The look at the process's memory costs little, and only when it has grown beyond the bound are the connections
        looked at. Freed memory may stay with the process, so its size alone ends no connection.
        """
        if self._own_memory() - self._used_at_start < self._most:
            return
        waiting = {end: self._of(end).waiting(received) for end, received in _received(self._port)}
        accounts = Counter[str]()
        for end, n_bytes in waiting.items():
            accounts[self._of(end).account] += n_bytes
        ended = dict[End, int]()
        excess = sum(waiting.values()) - self._most
        while excess > 0:
            ((account, _),) = accounts.most_common(1)
            end = max((end for end in waiting if self._of(end).account == account), key=waiting.__getitem__)
            ended[end] = waiting.pop(end)
            accounts[account] -= ended[end]
            excess -= ended[end]
        if ended:
            self._hang_up(ended)

    def _own_memory(self) -> int:
        """The bytes of this process, without the files that it shares with other processes."""
        _, resident, shared, *_ = map(int, os.pread(self._statm, 200, 0).split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def _of(self, end: End) -> Traffic:
        """A connection without any call so far counts under its address."""
        return self._known.get(end) or Traffic(end[0])

    def _hang_up(self, ended: dict[End, int]) -> None:
        for end, connected in _connections(self._port):
            if end in ended:
                with suppress(OSError):  # The other end has hung up at this moment.
                    connected.shutdown(socket.SHUT_RDWR)
        self.hung_up += len(ended)
        if (missed := self._hang_ups.due()) is not None:
            end = max(ended, key=ended.__getitem__)
            log.warning(
                "more than %d MiB of unfinished messages and unread answers wait (%s): %d "
                "connections are ended, such as that of '%s' from %s, for which %d MiB wait (%d times more before)",
                self._most >> 20,
                self._name,
                len(ended),
                self._of(end).account,
                join_address(*end),
                ended[end] >> 20,
                missed,
            )


def _received(port: int) -> Iterator[tuple[End, int]]:
    """Each connection's other end, and the bytes that gRPC has taken from its socket."""
    for end, connected in _connections(port):
        with suppress(OSError):
            info = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED_AT + 8)
            unread = fcntl.ioctl(connected.fileno(), termios.FIONREAD, bytes(4))
            if len(info) == _RECEIVED_AT + 8:
                yield end, struct.unpack_from("=Q", info, _RECEIVED_AT)[0] - struct.unpack("=i", unread)[0]


def _connections(port: int) -> Iterator[tuple[End, socket.socket]]:
    """The open connections to a port of this process: the other end, and a socket that is good until the next one.

    gRPC owns the descriptors and may close one at any moment. So each is duplicated first: then its number stands for
    this connection until the duplicate is closed, and no other connection can be meant.
    """
    for entry in _OPEN.iterdir():
        with suppress(OSError), ExitStack() as stack:  # Closed by now, no socket, or no longer connected.
            duplicate = os.dup(int(entry.name))
            if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
                os.close(duplicate)
                continue
            connected = stack.enter_context(socket.socket(fileno=duplicate))
            if connected.family in (socket.AF_INET, socket.AF_INET6) and connected.getsockname()[1] == port:
                host, peer_port, *_ = connected.getpeername()
                yield (host.partition("%")[0], peer_port), connected
