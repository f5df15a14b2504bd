"""The channel to a learner: encrypted and with a token on every call, or plain on loopback. Also two calls on it."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from typing import Any, Final, TypeAlias

import grpc

from common.wire.address import is_loopback, split_address
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import CLIENT_OPTIONS, OTHER_PORT
from common.wire.tls import read_authorities, read_pair
from common.wire.tokens import Token, authorization
from common.wire.trust import Trust
from common.wire.watched import Watched

PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables from which gRPC takes a proxy, the first that is set; it looks at no others."""
EXEMPT_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")
"""The variables from which gRPC takes the ends of host names that it reaches without a proxy."""

LOOK_SECONDS: Final = 1.0
"""The time in which a server must answer, for a hint at what it speaks."""


class TokenPlugin(grpc.AuthMetadataPlugin):
    """Puts the present token into each call. gRPC calls it on encrypted channels only."""

    def __init__(self, tokens: Watched[tuple[Token, ...]]) -> None:
        self._tokens = tokens

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        del context  # Every method gets the same token.
        callback((authorization(self._tokens.get()[0].secret),), None)


def watch_credentials(address: str, trust: Trust) -> Watched[grpc.ChannelCredentials | None]:
    """The credentials for a channel to HOST:PORT, read again when a file of ``trust`` changes; None for plaintext.

    Raises:
        ConfigError: settings contradict each other, or a file cannot be read.
    """
    host, _ = split_address(address)
    if not trust.uses_tls(host):
        return Watched([], lambda: None)
    tokens = trust.tokens()
    files = {path: None for path in (trust.ca, trust.certificate, trust.key) if path}
    return Watched([*files], lambda: _read_credentials(trust, tokens))


def read_certificates(trust: Trust) -> grpc.ChannelCredentials:
    """The credentials of an encrypted channel, without a token.

    Raises:
        ConfigError: a file cannot be read.
    """
    authorities = read_authorities(trust.ca) if trust.ca else None
    key, chain = read_pair(trust.certificate, trust.key) if trust.certificate and trust.key else (None, None)
    return grpc.ssl_channel_credentials(authorities, key, chain)


def _read_credentials(trust: Trust, tokens: Watched[tuple[Token, ...]] | None) -> grpc.ChannelCredentials:
    encrypted = read_certificates(trust)
    if tokens is None:
        return encrypted
    return grpc.composite_channel_credentials(encrypted, grpc.metadata_call_credentials(TokenPlugin(tokens)))


def open_channel(
    address: str, credentials: grpc.ChannelCredentials | None, name: str | None = None, *, apart: bool = False
) -> grpc.Channel:
    """A channel to HOST:PORT, which connects at its first call.

    Args:
        address: HOST:PORT to connect to.
        credentials: see ``watch_credentials``; None for plaintext.
        name: the host name that the learner's certificate must have; None: the host of ``address``.
        apart: whether it has a connection of its own. gRPC lets channels of a process share one, also with a channel
            that is just being closed.
    """
    target = f"dns:///{address}"  # Without the scheme gRPC would take the host `unix` for the path of a socket.
    options = (*channel_options(address), *((("grpc.use_local_subchannel_pool", 1),) if apart else ()))
    if credentials is None:
        return grpc.insecure_channel(target, options=options)
    host, _ = split_address(address)
    named = (("grpc.ssl_target_name_override", name),) if name not in (None, host) else ()
    return grpc.secure_channel(target, credentials, options=(*options, *named))


def channel_options(address: str) -> tuple[tuple[str, Any], ...]:
    """The options of a channel to HOST:PORT. No proxy leads to this host itself, so none is asked on loopback."""
    direct = (("grpc.enable_http_proxy", 0),) if is_loopback(split_address(address)[0]) else ()
    return (*CLIENT_OPTIONS, *direct)


def name_proxy(address: str) -> str:
    """For a message about HOST:PORT, which does not answer: which proxy is in the way and how to go without; or ``""``.

    The value of the variable may hold a password, so the message has its name only.
    """
    host, _ = split_address(address)
    variable = next((name for name in PROXY_VARIABLES if os.environ.get(name)), None)
    exempt = next(filter(None, map(os.environ.get, EXEMPT_VARIABLES)), "")
    if variable is None or is_loopback(host) or any(host.endswith(name.strip()) for name in exempt.split(",") if name):
        return ""
    return f"; {variable} is set, so gRPC asks that proxy for the way: no_proxy={host} goes without it"


_SILENT: Final = r"Deadline Exceeded|time(d )?out|before receiving SETTINGS|Endpoint closing|does not answer"
"""gRPC's texts, and one of a session, where nothing has come back in time. A server of HTTP/1.1 would have refused the
request at once."""
_MEANINGS: Final = {
    _SILENT: "; nothing came back in time: is that process stopped or overloaded, or does the network drop packets?",
    r"HTTP/2|SETTINGS": f"; something else than gRPC is spoken there{OTHER_PORT}",
    r"Handshake read failed": "; does it speak TLS (else: --insecure), and accept the certificate (--certificate)?",
    # A server that asks for TLS or a certificate, and gets none, closes the connection and does not say why.
    r"Socket closed|Connection reset": "; does it expect TLS (--ca) or a certificate (--certificate, --key)?",
}
"""gRPC's text about a connection that could not be made or broke, and what may be wrong there."""


def hint_at_server(address: str, reason: str) -> str:
    """For a message about a call to HOST:PORT that failed for this reason: what may be wrong there; or ``""``."""
    if not re.search(_SILENT, reason) and _speaks_http(address):
        return f"; HTTP/1.1 is spoken there, and not gRPC{OTHER_PORT}"
    meaning = next((meaning for pattern, meaning in _MEANINGS.items() if re.search(pattern, reason)), "")
    return name_proxy(address) + meaning


def _speaks_http(address: str) -> bool:
    with suppress(OSError), socket.create_connection(split_address(address), LOOK_SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: crossborder\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    return False


PushItems: TypeAlias = "grpc.StreamStreamMultiCallable[Request, pb.PushItemsResponse]"
GetModel: TypeAlias = "grpc.UnaryStreamMultiCallable[pb.GetModelRequest, bytes]"
"""Yields serialised ``GetModelResponse`` messages, for ``large_field.parse_chunk``."""


def get_model(channel: grpc.Channel) -> GetModel:
    """``LearnerService.GetModel`` on a channel.

    The generated stub would parse each message, with copies of its data; this callable leaves the messages as they are.
    """
    return channel.unary_stream(path_of("GetModel"), pb.GetModelRequest.SerializeToString)


def push_items(channel: grpc.Channel) -> PushItems:
    """``LearnerService.PushItems`` on a channel, without the generated stub's copies of each payload."""
    return channel.stream_stream(path_of("PushItems"), Request.serialize, pb.PushItemsResponse.FromString)


def path_of(method: str) -> str:
    """The path of a method of ``LearnerService`` on the wire."""
    found = pb.DESCRIPTOR.services_by_name["LearnerService"].methods_by_name[method]
    return f"/{found.containing_service.full_name}/{found.name}"
