"""Asking a learner how it would serve an actor, without joining.

Name, connection and TLS are first tried step by step without gRPC, which would not say which step failed.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import grpc

from actor.client.assembly import ModelFile, assemble
from actor.client.join_answer import read_schema
from common.data import Schema
from common.errors import AuthenticationError, LearnerUnreachableError, ProtocolMismatchError, RefusedError
from common.wire.channel import get_model, hint_at_server, open_channel, watch_credentials
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import PROTOCOL_VERSION, QUESTION_SECONDS, describe, transfer_seconds, typed_error
from common.wire.trust import Trust

PAYLOADS: Final = 8
PAYLOAD_BYTES: Final = 1 << 20
TRANSFER_SECONDS: Final = transfer_seconds(PAYLOADS * PAYLOAD_BYTES)


class CheckAnswer(NamedTuple):
    """A learner's answer to ``Check``, and when it was asked and given, in Unix seconds by this host's clock."""

    found: pb.CheckResponse
    schema: Schema
    """That of ``found``, checked."""
    asked_at: float
    answered_at: float

    @property
    def round_trip(self) -> float:
        """Seconds from the question to the answer."""
        return self.answered_at - self.asked_at

    @property
    def clock_offset(self) -> float:
        """Seconds that the learner's clock is ahead of ours, give or take half the round trip (RFC 5905, section 8)."""
        return self.found.unix_seconds - (self.asked_at + self.answered_at) / 2


class Probe:
    """A channel to a learner, for questions. Nothing is joined, stored or counted.

    Args:
        address: HOST:PORT.
        trust: as an actor's.
        clock: Unix seconds.
        actor_id: of the actor whose parameters are asked for; None: those that most actors have.

    Raises:
        ConfigError: a file of ``trust`` cannot be read, or its settings contradict each other.
    """

    def __init__(
        self, address: str, trust: Trust, clock: Callable[[], float] = time.time, actor_id: int | None = None
    ) -> None:
        self._address, self._clock, self._question = address, clock, pb.CheckRequest(wanted_id=actor_id)
        self._channel = open_channel(address, watch_credentials(address, trust).get())
        self._stub = pb_grpc.LearnerServiceStub(self._channel)

    def ask(self) -> CheckAnswer:
        """Ask once.

        Raises:
            AuthenticationError: this host and the learner do not trust each other.
            ProtocolMismatchError: the learner speaks another version, or an older one that has no ``Check``.
            LearnerUnreachableError: it did not answer.
        """
        asked_at = self._clock()
        found = self._call(lambda: self._stub.Check(self._question, timeout=QUESTION_SECONDS))
        answered_at = self._clock()
        if found.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"protocol version: the learner speaks {found.protocol_version}, this host {PROTOCOL_VERSION}"
            )
        return CheckAnswer(found, read_schema(found.schema), asked_at, answered_at)

    def upload(self, max_message_bytes: int) -> float:
        """Measure the bytes per second that reach the learner, with several messages under way as an actor has them."""
        # Random bytes, so that no proxy compresses them.
        payload = os.urandom(min(PAYLOAD_BYTES, max_message_bytes // 2))
        began = time.perf_counter()
        calls = [self._stub.Check.future(pb.CheckRequest(payload=payload), TRANSFER_SECONDS) for _ in range(PAYLOADS)]
        for call in calls:
            self._call(call.result)
        return PAYLOADS * len(payload) / (time.perf_counter() - began)

    def download(self) -> tuple[ModelFile, float]:
        """Fetch the newest model, and count the seconds that it takes.

        Raises:
            RefusedError: the answer is no model, or the learner has none yet.
            CrossborderError: as ``ask``.
        """
        began = time.perf_counter()
        messages = self._call(lambda: get_model(self._channel)(pb.GetModelRequest(), timeout=TRANSFER_SECONDS))
        try:
            file = self._call(lambda: assemble(messages))  # ``assemble`` pulls the messages, so the call may fail here.
        except ValueError as error:
            raise RefusedError(str(error)) from error
        if file is None:
            raise RefusedError("the learner has no model yet")
        return file, time.perf_counter() - began

    def close(self) -> None:
        self._channel.close()

    def _call(self, ask: Callable[[], Any]) -> Any:
        """Call ``ask``; raise its gRPC errors as our own errors."""
        try:
            return ask()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ProtocolMismatchError("the learner does not know this question: its release is older") from error
            reason = describe(error)
            unreachable = LearnerUnreachableError(f"no answer: {reason}{hint_at_server(self._address, reason)}")
            raise typed_error(error) or unreachable from error


CONNECT_SECONDS: Final = 5.0


def resolve(host: str, port: int) -> list[str]:
    """Find the addresses of a host.

    Raises:
        LearnerUnreachableError: it has none.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LearnerUnreachableError(f"'{host}' has no address: {error.strerror}") from error
    return [*dict.fromkeys(str(place[0]) for *_, place in found)]


def connect(host: str, port: int) -> socket.socket:
    """Open a connection.

    Raises:
        LearnerUnreachableError: nobody listens there, or something on the way does not let it through.
    """
    try:
        return socket.create_connection((host, port), CONNECT_SECONDS)
    except OSError as error:
        reason = f"no answer within {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else error.strerror
        raise LearnerUnreachableError(f"port {port} of {host}: {reason}") from error


def inspect_certificate(host: str, port: int, trust: Trust) -> str:
    """Shake hands over TLS as an actor does, and say whom the certificate is for, who signed it, and until when.

    Raises:
        AuthenticationError: actor and learner do not trust each other, or the learner does not speak TLS.
        LearnerUnreachableError: nobody listens there, or the learner does not answer.
    """
    try:
        with connect(host, port) as plain, _context(trust).wrap_socket(plain, server_hostname=host) as encrypted:
            certificate = encrypted.getpeercert() or {}
            if not encrypted.recv(1):  # In TLS 1.3 the learner looks at our certificate only after the handshake.
                raise AuthenticationError(_refusal(trust))
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(f"the {trust.PEER}'s certificate does not verify: {error.verify_message}") from error
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            meaning = f"the {trust.PEER} does not speak TLS; if that is intended, say --insecure"
        else:
            meaning = f"{_refusal(trust)} ({error.reason or error})"
        raise AuthenticationError(meaning) from error
    except TimeoutError as error:
        found = f"no answer to the TLS handshake within {CONNECT_SECONDS:g} s"
        raise LearnerUnreachableError(f"port {port} of {host}: {found}") from error
    except OSError as error:
        raise AuthenticationError(f"{_refusal(trust)} ({error})") from error
    return _describe(certificate)


def _context(trust: Trust) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trust.ca)
    context.set_alpn_protocols(["h2"])
    if trust.certificate and trust.key:
        context.load_cert_chain(trust.certificate, trust.key)
    return context


def _refusal(trust: Trust) -> str:
    """The likely reason of a peer that closes the connection and does not say why."""
    if trust.certificate:
        likely = f"not accept the certificate {trust.certificate}"
    else:
        likely = "ask for your certificate (--certificate, --key)"
    return f"the {trust.PEER} broke off the handshake: it may {likely}, or speak no TLS (--insecure)"


def _describe(certificate: Mapping[str, Any]) -> str:
    names = ", ".join(name for _, name in certificate.get("subjectAltName", ()))
    issuer = " ".join(value for part in certificate["issuer"] for _, value in part)
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    days = (until - datetime.now(UTC)).days
    return f"for {names}; by {issuer}; until {until:%Y-%m-%d}, {days} days from now"
