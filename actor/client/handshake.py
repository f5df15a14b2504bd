"""Reaches a learner without gRPC, step by step: name, connection, TLS. gRPC would not say which step failed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from common.errors import AuthenticationError, LearnerUnreachableError
from common.wire.trust import Trust

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
        raise AuthenticationError(f"the learner's certificate does not verify: {error.verify_message}") from error
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            meaning = "the learner does not speak TLS; if that is intended, say --insecure"
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
    """The likely reason of a learner that closes the connection and does not say why."""
    if trust.certificate:
        return f"the learner broke off the handshake: it may not accept the certificate {trust.certificate}"
    return "the learner broke off the handshake: it may ask for your certificate (--certificate, --key)"


def _describe(certificate: Mapping[str, Any]) -> str:
    names = ", ".join(name for _, name in certificate.get("subjectAltName", ()))
    issuer = " ".join(value for part in certificate["issuer"] for _, value in part)
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    days = (until - datetime.now(UTC)).days
    return f"for {names}; by {issuer}; until {until:%Y-%m-%d}, {days} days from now"
