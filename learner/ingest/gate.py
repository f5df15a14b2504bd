"""Who may call: TLS credentials that follow their files, and a token on every call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from common.config.server_config import ServerConfig, TlsConfig
from common.errors import CrossborderError
from common.wire.tls import read_authorities, read_pair
from common.wire.tokens import ACTOR_VARIABLE, ADMIN_VARIABLE, TokenSource, bearer
from common.wire.watched import Watched
from learner.ingest.caller import ACTORS, HEALTH, Caller, Role
from learner.ingest.known import KnownTokens, digest_of


class UnauthenticatedError(CrossborderError):
    """The call has no valid token, or no longer."""


class TokenReplacedError(CrossborderError):
    """The token is no longer valid, but its holder has another; an actor with the other token may come back."""


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """TLS 1.2 and above; changed files are used from the next connection on, open ones stay.

    Raises:
        ConfigError: a file cannot be read.
    """
    files = [tls.certificate, tls.key, *([tls.client_ca] if tls.client_ca else [])]
    used = Watched(files, lambda: _configuration(tls))
    last = used.get()

    def changed() -> Any:  # None: no change, which the stubs do not know.
        nonlocal last
        before, last = last, used.get()
        return None if last is before else last

    return grpc.dynamic_ssl_server_credentials(last, changed, require_client_authentication=tls.client_ca is not None)


def _configuration(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    authorities = read_authorities(tls.client_ca) if tls.client_ca else None
    return grpc.ssl_server_certificate_configuration([read_pair(tls.certificate, tls.key)], authorities)


class Gate:
    """Knows callers by their tokens: actors for the learner's own service, admins for anything else.

    Args:
        known: the tokens of each role that has any; empty: no call needs a token.
        open_health: health checks need no token.
    """

    def __init__(self, known: dict[Role, KnownTokens], *, open_health: bool) -> None:
        self._known, self._open_health = known, open_health

    @classmethod
    def of(cls, config: ServerConfig) -> Gate:
        """The gate that a configuration asks for.

        Raises:
            ConfigError: a token file cannot be read.
        """
        sources = {
            Role.ACTOR: TokenSource.find(config.actor_token_file, ACTOR_VARIABLE),
            Role.ADMIN: TokenSource.find(config.admin_token_file, ADMIN_VARIABLE),
        }
        known = {role: KnownTokens(source) for role, source in sources.items() if source}
        return cls(known, open_health=config.open_health)

    def identify(self, method: str, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> Caller:
        """Who calls.

        Raises:
            UnauthenticatedError: the method takes a token, and the call has no valid one.
        """
        if not self._known or (self._open_health and method.startswith(HEALTH)):
            return Caller(method, peer)
        role = Role.ACTOR if method.startswith(ACTORS) else Role.ADMIN
        digest = digest_of(bearer(metadata))
        name = self._known[role].name_of(digest) if role in self._known else None
        if name is None:
            raise UnauthenticatedError("not authenticated")
        return Caller(method, peer, role, name, digest)

    def objection(self, caller: Caller) -> CrossborderError | None:
        """Why an open call of this caller must end; None while its token is among those that ``names`` looked at last.

        A name with another token is told to come back: an actor whose file holds that one goes on.
        """
        if caller.role is Role.ANYONE:
            return None
        known = self._known[caller.role]
        if caller.digest in known:
            return None
        if caller.name in known.names():
            return TokenReplacedError("the token was replaced; join again with the new one")
        return UnauthenticatedError("not authenticated")

    def names(self) -> dict[Role, frozenset[str]]:
        """The holders of valid tokens."""
        return {role: known.names() for role, known in self._known.items()}
