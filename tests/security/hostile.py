"""Callers who mean harm: HTTP/2 by hand over real sockets, for what no client library would send.

python -m tests.security.hostile ADDRESS CERTS      attacks with everything there is until its standard input is closed
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import grpc

from common.wire.address import split_address
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION
from common.wire.tokens import TokenSource, authorization

SECONDS: Final = 180.0
SERVICE: Final = f"/{pb.DESCRIPTOR.services_by_name['LearnerService'].full_name}"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
BOMB: Final = bytes(64 << 20)
"""Gzip makes a thousandth of it."""


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """A string of HPACK (RFC 7541, section 5), neither compressed nor above 16,510 bytes."""
    size, rest = len(text), len(text) - 127
    head = bytes([size]) if rest < 0 else bytes([127, rest & 127 | 128, rest >> 7])
    return head + text.encode()


def message(data: bytes, announced: int | None = None) -> bytes:
    """A gRPC message, whose length may be a lie."""
    return struct.pack(">BI", 0, len(data) if announced is None else announced) + data


class Hostile:
    """Where to attack, and with what: the authority and an actor's token. What is opened stays so until ``close``."""

    def __init__(self, address: str, certs: Path) -> None:
        self.address, self._ca = split_address(address), certs / "ca.pem"
        self._token = authorization(TokenSource("actor", certs / "actor.token").read()[0].secret)
        self._stack = ExitStack()
        self._context = ssl.create_default_context(cafile=str(self._ca))
        self._context.set_alpn_protocols(["h2"])

    def close(self) -> None:
        self._stack.close()

    def tcp(self, source: str = "") -> socket.socket:
        """A connection on which nothing has been said, from an address of this host."""
        return self._stack.enter_context(socket.create_connection(self.address, SECONDS, (source, 0)))

    def tls(self, source: str = "") -> ssl.SSLSocket:
        """An encrypted connection on which nothing has been said."""
        return self._stack.enter_context(self._context.wrap_socket(self.tcp(source), server_hostname="127.0.0.1"))

    def http2(self, token: str | None = None, source: str = "") -> Http2:
        """A connection that is ready for calls; with an actor's token unless another is given."""
        return Http2(self.tls(source), *((self._token[0], f"Bearer {token}") if token else self._token))

    def channel(self) -> grpc.Channel:
        """gRPC's own client, with an actor's token and without a limit on what it sends."""
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(self._ca.read_bytes()),
            grpc.access_token_call_credentials(self._token[1].removeprefix("Bearer ")),
        )
        address = f"{self.address[0]}:{self.address[1]}"
        options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        return self._stack.enter_context(grpc.secure_channel(address, credentials, options=options))


class Http2:
    """One connection, as its client."""

    def __init__(self, wire: socket.socket, *extra: str) -> None:
        self._wire, self._extra, self._next = wire, extra, 1
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.sendall(PREFACE + frame(SETTINGS))

    def send(self, data: bytes) -> None:
        self._wire.sendall(data)

    def begin(self, path: str) -> int:
        """Begin a call; its stream."""
        stream, self._next = self._next, self._next + 2
        fields = (":method", "POST", ":scheme", "https", ":path", path, ":authority", "learner", "te", "trailers")
        names = (*fields, "content-type", "application/grpc", *self._extra)
        block = b"".join(b"\0" * (i % 2 == 0) + _text(text) for i, text in enumerate(names))
        self.send(frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def call(self, path: str, data: bytes) -> int:
        """A whole call, as far as its sender goes; its stream."""
        stream = self.begin(path)
        self.send(frame(DATA, END_STREAM, stream, data))
        return stream

    def frames(self) -> Iterator[tuple[int, int, int]]:
        """Kind, flags and stream of every frame that comes, until the other side closes; pings are answered."""
        with suppress(ConnectionError, ssl.SSLEOFError):
            while len(head := self._receive(9)) == 9:
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                payload = self._receive(int.from_bytes(head[:3]))
                if kind in (SETTINGS, PING) and not flags:
                    self.send(frame(kind, ACK, payload=payload if kind == PING else b""))
                yield kind, flags, stream

    def _receive(self, size: int) -> bytes:
        """So many bytes; fewer at the end."""
        data = b""
        while len(data) < size and (part := self._wire.recv(size - len(data))):
            data += part
        return data

    def has_ended(self) -> bool:
        """Whether the other side has closed the connection; reads what has come, without waiting for more."""
        self._wire.settimeout(0.0)
        try:
            while self._wire.recv(1 << 16):
                pass
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
        except OSError:
            return True
        finally:
            self._wire.settimeout(SECONDS)
        return True

    def await_end(self, stream: int) -> None:
        """Wait until the call is ended from the other side; an error after ``SECONDS`` without a frame."""
        for kind, flags, of in self.frames():
            ends = kind == RESET or (kind == HEADERS and flags & END_STREAM)
            if kind == GOAWAY or (of == stream and ends):
                return


def join(incarnation: int, host: str = "elsewhere") -> pb.JoinRequest:
    return pb.JoinRequest(protocol_version=PROTOCOL_VERSION, incarnation=incarnation, host=host, pid=1)


def join_often(hostile: Hostile, times: int) -> Counter[str]:
    """Joins as so many actors, 100 at a time; what came of it."""
    stub, first, outcomes = pb_grpc.LearnerServiceStub(hostile.channel()), 1 << 40, Counter[str]()
    for batch in range(0, times, 100):
        calls = [stub.Join.future(join(first + batch + i), timeout=SECONDS) for i in range(100)]
        outcomes.update(call.code().name for call in calls)
    return outcomes


def nested(depth: int) -> bytes:
    """Groups of an unknown field in one another, so deep."""
    return b"\x7b" * depth + b"\x7c" * depth


def _besiege(hostile: Hostile, stop: threading.Event) -> Counter[str]:
    """Everything at once, over and over, a little at a time."""
    done = Counter[str]()
    held = [hostile.tcp() for _ in range(20)]
    while not stop.wait(0.05):
        done["rounds"] += 1
        with suppress(OSError, ssl.SSLError):
            _one_round(hostile, done)
        held.append(hostile.tcp())
        held.pop(0).close()
    return done


def _one_round(hostile: Hostile, done: Counter[str]) -> None:
    done.update({f"joins {outcome}": times for outcome, times in join_often(hostile, 100).items()})
    wire = hostile.http2()
    for path in ("Join", "Check", "GetModel", "PushItems"):
        wire.begin(f"{SERVICE}/{path}")
    wire.send(frame(DATA, 0, wire.begin(f"{SERVICE}/PushItems"), message(b"slow", 16 << 20)))
    wire.send(frame(DATA, 0, wire.begin(f"{SERVICE}/PushItems"), message(b"huge", (1 << 32) - 1)))
    wire.call(f"{SERVICE}/Join", message(nested(5000)))
    for _ in range(100):
        wire.send(frame(RESET, 0, wire.begin(f"{SERVICE}/Join"), b"\0\0\0\x08"))
    for _ in range(8):
        wire.call("/grpc.health.v1.Health/Watch", message(b""))
    guessing = hostile.http2("not-the-right-token-at-all")
    for _ in range(20):
        guessing.call(f"{SERVICE}/Check", message(b""))


def main() -> None:
    stop = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=await_end, daemon=True).start()
    hostile = Hostile(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.write(json.dumps(_besiege(hostile, stop)) + "\n")


if __name__ == "__main__":
    main()
