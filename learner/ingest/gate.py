"""Identifies callers: the token of each call is checked before any message of the call is read."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from common.config.server_config import ServerConfig
from common.errors import ConfigError, CrossborderError
from common.wire.address import peer_address, split_peer
from common.wire.channel import path_of
from common.wire.owners import find_peer_owners, find_strangers
from common.wire.pb import acting_pb2, crossborder_pb2
from common.wire.rpc import NOT_AUTHENTICATED
from common.wire.tokens import (
    ACTOR_VARIABLE,
    ADMIN_VARIABLE,
    WITHOUT_NAME,
    Token,
    TokenSource,
    bearer,
    parse_tokens,
    read_token_text,
)
from common.wire.watched import stamp_of
from learner.ingest.refusals import OtherUserError, TokenReplacedError, UnauthenticatedError

log = logging.getLogger(__name__)
HEALTH_METHODS: Final = "/grpc.health.v1.Health/"
ACTOR_METHODS: Final = f"/{crossborder_pb2.DESCRIPTOR.services_by_name['LearnerService'].full_name}/"
CLIENT_METHODS: Final = f"/{acting_pb2.DESCRIPTOR.services_by_name['ActingService'].full_name}/"
_ASKING: Final = frozenset(path_of(method) for method in ("Check", "GetModel", "PushItems"))
SETTLE_SECONDS: Final = 0.5
"""A file without a token counts after this time: an editor that writes in place empties the file for a moment."""
REFUSES_ALL: Final = "token file %s: it holds no token, so every caller is refused until it does"


class Role(enum.StrEnum):
    """The role that a caller has proved by its token."""

    ANYONE = "anyone"
    """The call needs no token."""
    ACTOR = "actor"
    ADMIN = "admin"
    CLIENT = "client"
    """A client of an acting service."""


@dataclass(frozen=True)
class Caller:
    """The method of one call, and its caller.

    Args:
        method: ``/package.Service/Method``.
        peer: gRPC's name of the other end.
        role: of the token.
        name: of the token; empty where the call needs no token.
        digest: of the token.
    """

    method: str
    peer: str
    role: Role = Role.ANYONE
    name: str = ""
    digest: bytes = b""

    @property
    def account(self) -> str:
        """The name under which limits count the call: the token's name; without a name, the address."""
        return peer_address(self.peer) if self.name in WITHOUT_NAME else self.name

    @property
    def told(self) -> str:
        """Who calls, for the log: the address, and before it the role and the name that a token has proved."""
        name = "" if self.name in WITHOUT_NAME else f" '{self.name}'"
        host = split_peer(self.peer)[0]
        return host if self.role is Role.ANYONE else f"{self.role}{name} at {host}"

    def facts(self) -> dict[str, str]:
        """The facts about the call that the audit log records."""
        return {"method": self.method, "role": self.role.value, "name": self.name, "peer": split_peer(self.peer)[0]}


current_caller: ContextVar[Caller] = ContextVar("current_caller")
"""The caller of the call that is being served."""


def digest_of(secret: str) -> bytes:
    """The SHA-256 of a secret. Only digests are compared: the time of a look-up tells nothing about the secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()  # JSON may hold what no other text can.


class KnownTokens:
    """The tokens of one role that are valid now. A token that is taken out of its file is refused within a second.

    A changed file is read again; lines that hold no token are logged and left out. A file without any token, or a
    missing file, refuses everybody. (``Watched`` keeps the last good value instead: right for certificates, not for
    tokens.)

    Only the event loop's thread uses this: at each call, and a few times a second for calls that are open. Another
    process may write the file at any moment. So the file's stamp is taken before the file is read: after a write in
    between, the stamp differs from that of the file, and the next look reads the file once more.

    Args:
        source: a file, or tokens that never change.
        clock: seconds, monotonic.
        serves_again: a process before this one has served with this source, so a changed file is read as that process
            would have read it.

    Raises:
        ConfigError: the source cannot be used at the first start.
    """

    def __init__(
        self, source: TokenSource, clock: Callable[[], float] = time.monotonic, *, serves_again: bool = False
    ) -> None:
        self._path, self._clock = source.path, clock
        self._stamp = stamp_of(source.path) if source.path else None
        self._names = _read_settled(source.path) if serves_again and source.path else _names_by_digest(source.read())
        self._pending: dict[bytes, str] | None = None
        """Names read from a changed file that are not in use yet."""
        self._read_at = 0.0

    def __contains__(self, digest: bytes) -> bool:
        """Whether the token with this digest was valid at the last look at the source; looks at no file."""
        return digest in self._names

    def name_of(self, digest: bytes) -> str | None:
        """The holder of the token with this digest; None: the token is not valid."""
        self._refresh()
        return self._names.get(digest)

    def digests(self) -> frozenset[bytes]:
        """The digests of all tokens that were valid at the last look at the source."""
        return frozenset(self._names)

    def names(self) -> frozenset[str]:
        """All holders of valid tokens."""
        self._refresh()
        return frozenset(self._names.values())

    def _refresh(self) -> None:
        if self._path is None:
            return
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp, self._pending, self._read_at = stamp, _read_leniently(self._path), self._clock()
        if self._pending is None or (not self._pending and self._clock() < self._read_at + SETTLE_SECONDS):
            return
        self._names, self._pending = self._pending, None
        if self._names:
            log.info("token file %s: read again: %d tokens", self._path, len(self._names))
        else:
            log.error(REFUSES_ALL, self._path)


def _names_by_digest(tokens: Iterable[Token]) -> dict[bytes, str]:
    return {digest_of(token.secret): token.name for token in tokens}


def _read_leniently(path: Path) -> dict[bytes, str]:
    """The tokens of all good lines: a mistake in one line must not throw out the holders of the other tokens."""
    try:
        tokens, problems = parse_tokens(read_token_text(path))
    except ConfigError as error:
        log.error("%s", error)
        return {}
    for problem in problems:
        log.error("token file %s: %s; the line is left out", path, problem)
    return _names_by_digest(tokens)


def _read_settled(path: Path) -> dict[bytes, str]:
    """The tokens of all good lines, after ``SETTLE_SECONDS`` if there are none; waits for that."""
    names = _read_leniently(path)
    if not names:
        time.sleep(SETTLE_SECONDS)
        names = _read_leniently(path)
    if not names:
        log.error(REFUSES_ALL, path)
    return names


class Gate:
    """Knows callers by their tokens: actors may call ``LearnerService``, clients ``ActingService``, admins the rest.

    Health checks need no token: probes of containers have none, and a port that answers says as much.

    Args:
        known: the tokens of each role that has any; empty: no call needs a token.
        is_open: without tokens, other users of this host may call too.
    """

    def __init__(self, known: dict[Role, KnownTokens], *, is_open: bool = False) -> None:
        self._known, self._is_open = known, is_open
        self.port: int | None = None
        """Where this process listens; None until it does."""
        self._told = set[bytes]()
        """The tokens of admins that the log has called an actor's."""

    @classmethod
    def of(cls, config: ServerConfig, *, serves_again: bool = False) -> Gate:
        """The gate that a configuration asks for.

        Args:
            config: of the server.
            serves_again: see ``KnownTokens``. An admin's token that has become an actor's gives no rights then.

        Raises:
            ConfigError: at the first start, a token file cannot be read, or an admin's token is an actor's too.
        """
        sources = {
            Role.ACTOR: TokenSource.find(config.actor_token_file, ACTOR_VARIABLE),
            Role.ADMIN: TokenSource.find(config.admin_token_file, ADMIN_VARIABLE),
        }
        known = {role: KnownTokens(source, serves_again=serves_again) for role, source in sources.items() if source}
        gate = cls(known, is_open=config.insecure)
        for digest in known[Role.ADMIN].digests() if Role.ADMIN in known and not serves_again else ():
            if problem := gate._find_problem(digest):
                raise ConfigError(problem)
        return gate

    def identify(self, method: str, metadata: Iterable[tuple[str, str | bytes]], peer: str) -> Caller:
        """Identify the caller of a call.

        Raises:
            UnauthenticatedError: the method takes a token, and the call has no valid one.
        """
        if not self._known or method.startswith(HEALTH_METHODS):
            return Caller(method, peer)
        role = _role_for(method)
        digest = digest_of(bearer(metadata))
        name = self._known[role].name_of(digest) if role in self._known else None
        if role is Role.ADMIN and name is not None and (problem := self._find_problem(digest)):
            if digest not in self._told:
                log.error("%s; it gives no rights of an admin until it is replaced", problem)
                self._told.add(digest)
            name = None
        if name is None:
            raise UnauthenticatedError(NOT_AUTHENTICATED)
        return Caller(method, peer, role, name, digest)

    async def require_own_user(self, caller: Caller) -> None:
        """Check that no other user of this host joins or gives orders where no token keeps that user out.

        Linux takes a millisecond, and where it does not speak netlink far longer: a thread waits for it, and calls that
        need an actor which has joined, or that only ask, are not looked up. Orders, which are those of admins, are
        refused too if Linux does not tell whose call it is.

        Raises:
            OtherUserError: another user of this host makes the call, or gives an order and may be another user.
        """
        if self._known or self._is_open or self.port is None or caller.method in _ASKING:
            return
        if caller.method.startswith(HEALTH_METHODS):
            return
        owners = await asyncio.to_thread(find_peer_owners, caller.peer, self.port)
        is_unknown = not owners and _role_for(caller.method) is Role.ADMIN
        if is_unknown or find_strangers(owners):
            found = "one whose user Linux does not tell" if is_unknown else "another user of this host"
            raise OtherUserError(
                f"expected a caller of this server's own user or of root, found {found}; a server "
                "without tokens serves one user: give it TLS and tokens (crossborder-certs)"
            )

    def _find_problem(self, digest: bytes) -> str | None:
        """What is wrong with an admin's token: it is an actor's too; None if it is not."""
        actor = self._known[Role.ACTOR].name_of(digest) if Role.ACTOR in self._known else None
        if actor is None:
            return None
        admin = self._known[Role.ADMIN].name_of(digest)
        return f"tokens: expected another token for admin '{admin}' than that of actor '{actor}', found the same"

    def objection(self, caller: Caller) -> CrossborderError | None:
        """Why an open call of this caller must end; None while its token is valid, as of the last call of ``names``.

        If the same name has another token now, the error asks the caller to come back: an actor whose own file holds
        the new token goes on with it.
        """
        if caller.role is Role.ANYONE:
            return None
        known = self._known[caller.role]
        if caller.digest in known:
            is_actors = caller.role is Role.ADMIN and self._find_problem(caller.digest)
            return UnauthenticatedError(NOT_AUTHENTICATED) if is_actors else None
        if caller.name in known.names():
            return TokenReplacedError("the token was replaced; join again with the new one")
        return UnauthenticatedError(NOT_AUTHENTICATED)

    def names(self) -> dict[Role, frozenset[str]]:
        """The holders of valid tokens."""
        return {role: known.names() for role, known in self._known.items()}


def _role_for(method: str) -> Role:
    """The role that a method needs."""
    if method.startswith(ACTOR_METHODS):
        return Role.ACTOR
    return Role.CLIENT if method.startswith(CLIENT_METHODS) else Role.ADMIN
