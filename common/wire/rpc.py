"""The protocol's version, sizes, channel options and errors, which both ends of the wire share."""

from __future__ import annotations

import re

import grpc
from grpc.experimental import ChannelOptions

from common.data import ModelVersion
from common.errors import (
    AuthenticationError,
    CrossborderError,
    ProtocolMismatchError,
    RefusedError,
    SchemaMismatchError,
)
from common.process.log import escape
from common.wire.pb import crossborder_pb2 as pb

PROTOCOL_VERSION = 3
ERROR_KEY = "crossborder-error"
NOT_AUTHENTICATED = "not authenticated"
"""A server's whole answer to a call without a valid token."""
CHUNK_BYTES = 1 << 20
UNARY_BYTES = 4 << 20
"""A model up to this size travels in one message, a larger one in chunks: beyond 4 MiB one message was slower."""
WINDOW_BYTES = 4 << 20
"""The bytes that the learner receives of a stream before it reads them."""
ANSWER_SECONDS = 60.0
"""The time for an answer, beside that for the bytes of a transfer."""
QUESTION_SECONDS = 5.0
"""The time for an answer that needs no transfer of a model, and that a person or an actor waits for."""
SLOWEST_LINK = 32 << 10
"""Bytes a second: a model that travels more slowly is given up. Pings notice a broken connection long before."""

CLIENT_OPTIONS = (
    (ChannelOptions.SingleThreadedUnaryStream, 1),  # A fifth less processor time: no hand-overs between threads.
    # Without pings, a client whose server had changed its address stayed disconnected for over 45 s.
    ("grpc.keepalive_time_ms", 5_000),
    # The time for TCP's acknowledgement. To the answer to a ping gRPC gives a minute (``grpc.http2.ping_timeout_ms``),
    # and that stays: the answer waits behind as much of a model as the link holds. With 5 s, a model of 16 MiB over 500
    # kB/s was cut each time. So those who wait for answers notice themselves that a process is stopped.
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),  # 30 s by default; a moved learner was found after 29 s.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    # An ingest process that died is back within a second, so clients must try to connect several times in a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, the time in which a connection must be ready: TCP, TLS and HTTP/2 take about four round trips. A
    # client whose server has moved waits this long for the former address.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", UNARY_BYTES + CHUNK_BYTES),
)


def transfer_seconds(n_bytes: int) -> float:
    """The longest time that an answer of up to ``n_bytes`` may take: a minute, and the time over the slowest link."""
    return ANSWER_SECONDS + n_bytes / SLOWEST_LINK


class NotJoinedError(CrossborderError):
    """The learner does not know this incarnation, since it was restarted: the actor must join again."""


class SharedIncarnationError(CrossborderError):
    """Two processes push as one incarnation, since one of them is a copy of the other: one must take a new one."""


class StoppingError(CrossborderError):
    """The learner is shutting down. Nothing is wrong, and the actor has nothing left to do."""

    exit_code = 0


class RunOverError(CrossborderError):
    """The run for which an acting service acts has reached its end. A client has nothing left to do."""

    exit_code = 0


class SupersededError(CrossborderError):
    """Another learner goes on with the run. The name of the learner may lead there soon, so the actor tries again."""


class BadMessageError(RefusedError):
    """A request of a client of an acting service breaks the rules of ``acting.proto``."""


class HandshakeError(AuthenticationError):
    """No connection could be encrypted, or not with who was asked for. Certificates may be replaced at this moment."""


class SessionLostError(CrossborderError):
    """An acting service has no session of this secret: it ended, or the service was started anew."""


_TYPED: dict[str | bytes, type[CrossborderError] | None] = {
    "protocol_mismatch": ProtocolMismatchError,
    "schema_mismatch": SchemaMismatchError,
    "not_joined": NotJoinedError,
    "incarnation_shared": SharedIncarnationError,
    "bad_items": RefusedError,
    "stopping": StoppingError,
    "run_over": RunOverError,
    "bad_message": BadMessageError,
    "session_lost": SessionLostError,
    "too_many_actors": None,  # An actor may leave: the call is tried again.
    "over_limit": None,
    "taken_over": None,
    "unreached": None,
}
_PERMANENT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # gRPC's own limit: a message of this size can never be sent.
}

OTHER_PORT = "; is this the port of --websocket, or one of metrics?"
"""A hint at a server that answers, but not by gRPC."""
_HANDSHAKE = {
    r"CERTIFICATE_VERIFY_FAILED: ([^:]+)": "the {peer}'s certificate does not verify: {}",
    r"(Hostname Verification Check failed|Peer name \S+ is not in peer certificate)": (
        "the {peer}'s certificate is not for this host name: {}"
    ),
    r"(missing selected ALPN property)": f"the {{peer}} speaks TLS, but not gRPC: {{}}{OTHER_PORT}",
    r"(WRONG_VERSION_NUMBER)": "the {peer} does not speak TLS: {}; to connect without encryption, use --insecure",
}
"""gRPC's text about a failed handshake, and its meaning. A server that refuses our certificate only closes the
connection."""


def _authentication_error(error: grpc.RpcError, details: str, peer: str) -> AuthenticationError | None:
    code = error.code()
    if code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE):
        return None
    for pattern, meaning in _HANDSHAKE.items():
        found = re.search(pattern, details)
        if found:
            return HandshakeError(meaning.format(found[1], peer=peer))
    if code is grpc.StatusCode.UNAVAILABLE:
        return None
    if details != NOT_AUTHENTICATED:  # gRPC's own code refuses to send the token, and says why.
        return AuthenticationError(f"the token was not sent: {escape(details)}")
    return AuthenticationError(f"the {peer} refused the token, or was shown none (--token-file)")


def typed_error(error: grpc.RpcError, peer: str = "learner") -> CrossborderError | None:
    """The error that a failed call stands for, or None if the call may be tried again; ``peer`` is who was called."""
    details = error.details() or error.code().name
    for entry in error.trailing_metadata() or ():
        if entry.key == ERROR_KEY and entry.value in _TYPED:
            kind = _TYPED[str(entry.value)]
            return kind(details) if kind else None
    refused = RefusedError(details) if error.code() in _PERMANENT else None
    return _authentication_error(error, details, peer) or refused


def describe(error: grpc.RpcError) -> str:
    """One line about a failed call."""
    return f"{error.code().name}: {escape(error.details() or '')}"


def version_to_pb(version: ModelVersion) -> pb.ModelVersion:
    return pb.ModelVersion(incarnation=version.incarnation, opt_steps=version.opt_steps)


def version_from_pb(message: pb.ModelVersion) -> ModelVersion:
    return ModelVersion(message.incarnation, message.opt_steps)
