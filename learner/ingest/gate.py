"""Who may call: TLS credentials that follow their files, and a token on every call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from common.log import Seldom
from common.pb import crossborder_pb2 as pb
from common.rpc import bearer
from common.server_config import ServerConfig, TlsConfig
from common.tls import read_authorities, read_pair
from common.tokens import ACTOR_VARIABLE, ADMIN_VARIABLE, Tokens
from common.watched import Watched
from learner.ingest.counts import IngestCounts
from learner.ingest.limits import HEALTH, Limits

log = logging.getLogger(__name__)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
REFUSALS_LOGGED_EVERY = 10.0
_ACTORS = f"/{pb.DESCRIPTOR.services_by_name['LearnerService'].full_name}/"


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


class Gate(grpc.aio.ServerInterceptor):
    """Asks every call for a token: an actor's for the learner's own service, an admin's for anything else.

    Args:
        actors: tokens of actors.
        admins: tokens of admins; without them only actors get in.
        open_health: health checks need no token.
        counts: where calls that are refused are counted.
        limits: told of them too, so that nobody guesses for long.
    """

    def __init__(
        self, actors: Tokens, admins: Tokens | None, *, open_health: bool, counts: IngestCounts, limits: Limits
    ) -> None:
        self._actors, self._admins, self._open_health = actors, admins, open_health
        self._counts, self._limits = counts, limits
        self._seldom = Seldom(REFUSALS_LOGGED_EVERY)
        # It waits for no request, so it fits any method.
        self._refusal: Handler = grpc.stream_stream_rpc_method_handler(self._refuse)

    @classmethod
    def of(cls, config: ServerConfig, counts: IngestCounts, limits: Limits) -> Gate | None:
        """The gate that a configuration asks for; None where no token is known.

        Raises:
            ConfigError: a token file cannot be read.
        """
        actors = Tokens.find(config.actor_token_file, ACTOR_VARIABLE)
        admins = Tokens.find(config.admin_token_file, ADMIN_VARIABLE)
        if actors is None:
            return None
        return cls(actors, admins, open_health=config.open_health, counts=counts, limits=limits)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if self._may_pass(handler_call_details.method, bearer(handler_call_details.invocation_metadata)):
            return await continuation(handler_call_details)
        return self._refusal

    def _may_pass(self, method: str, token: str) -> bool:
        if self._open_health and method.startswith(HEALTH):
            return True
        tokens = self._actors if method.startswith(_ACTORS) else self._admins
        return tokens is not None and tokens.accept(token)

    async def _refuse(self, _: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._counts.unauthenticated += 1
        self._limits.failed(context.peer())
        missed = self._seldom.due()
        if missed is not None:
            log.warning("a call from %s had no valid token (%d more before it)", context.peer(), missed)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not authenticated")
