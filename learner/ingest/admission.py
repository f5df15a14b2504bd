"""Where every call comes in: known by its token, within the limits, without a wait that has no end.

Errors become statuses here, and the audit log hears of refusals.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from common.errors import CrossborderError, RefusedError
from common.process.log import LogThrottle
from common.wire.rpc import ERROR_KEY
from learner.ingest.audit import AuditLog
from learner.ingest.caller import HEALTH, Caller, current_caller, host_of
from learner.ingest.counts import IngestCounts
from learner.ingest.gate import Gate, UnauthenticatedError
from learner.ingest.limits import Limits
from learner.ingest.refusal import Context, refuse, status_of

log = logging.getLogger(__name__)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
WATCH_SECONDS: Final = 60.0
"""A stream of health (``Watch``) ends after this time; a client that still wants it asks again."""
REFUSALS_LOGGED_EVERY: Final = 10.0
_WATCH: Final = f"{HEALTH}Watch"


class _OpenCall:
    """A call that is being served, which others can end."""

    def __init__(self, caller: Caller, scope: asyncio.Timeout) -> None:
        self.caller, self._scope = caller, scope
        self.ended_by: CrossborderError | None = None

    def end(self, reason: CrossborderError) -> None:
        """End the call with this reason as soon as it waits."""
        if self.ended_by is None and not self._scope.expired():
            self.ended_by = reason
            self._scope.reschedule(asyncio.get_running_loop().time())


class Admission(grpc.aio.ServerInterceptor):
    """Holds a place within the limits for every call, and waits only so long for the message that a call begins with.

    gRPC itself waits for the message of a unary call for ever and before anybody is asked; so every method is served as
    a stream, which is the same on the wire, and nothing of a call that is refused is read.

    Args:
        gate: knows callers; it is asked before any limit, so that no limit refuses a caller for what strangers do.
        limits: on open calls.
        counts: of calls without a valid token.
        audit: hears of refusals and of revoked tokens.
        seconds: a call has so long for its first message.
    """

    def __init__(self, gate: Gate, limits: Limits, counts: IngestCounts, audit: AuditLog, seconds: float) -> None:
        self._gate, self._limits, self._counts, self._audit, self._seconds = gate, limits, counts, audit, seconds
        self._open = set[_OpenCall]()
        self._names = gate.names()
        self._seldom = LogThrottle(REFUSALS_LOGGED_EVERY)

    def tick(self) -> None:
        """End the calls of tokens that are no longer valid; a few times a second."""
        before, self._names = self._names, self._gate.names()
        for role, names in self._names.items():
            for name in sorted(before[role] - names):
                log.warning("the %s '%s' has no valid token any more", role, name)
                self._audit.note("revoked", "ok", role=role, name=name)
            for name in sorted(names - before[role]):
                self._audit.note("admitted", "ok", role=role, name=name)
        for call in tuple(self._open):
            objection = self._gate.objection(call.caller)
            if objection is not None:
                call.end(objection)
        self._audit.tick()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details) or _UNKNOWN
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata

        async def serve(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                caller = self._gate.identify(method, metadata, context.peer())
            except UnauthenticatedError as error:
                await self._refuse_stranger(method, context, error)
            else:
                await self._serve_caller(handler, caller, requests, context)

        return grpc.stream_stream_rpc_method_handler(
            serve, handler.request_deserializer, _unless_bytes(handler.response_serializer)
        )

    async def _refuse_stranger(self, method: str, context: Context, error: CrossborderError) -> None:
        peer = context.peer()
        self._audit.note("refused", "unauthenticated", method=method, peer=host_of(peer))
        try:
            self._limits.failed(peer)
        except CrossborderError as over:
            await context.abort(status_of(over)[0], str(over), ((ERROR_KEY, status_of(over)[1]),))
        self._counts.unauthenticated += 1
        missed = self._seldom.due()
        if missed is not None:
            log.warning("a call from %s had no valid token (%d more before it)", peer, missed)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))

    async def _serve_caller(
        self, handler: Handler, caller: Caller, requests: AsyncIterator[Any], context: Context
    ) -> None:
        current_caller.set(caller)  # Each call is served in a task, hence a context, of its own.
        try:
            await self._within_limits(handler, caller, requests, context)
        except UnauthenticatedError as error:
            self._note(caller, "unauthenticated", "the token was revoked")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except DecodeError as error:
            refused = RefusedError(f"{caller.method}: expected a message of ours, found other bytes: {error}")
            self._note(caller, status_of(refused)[1], str(refused))
            await refuse(context, refused)
        except CrossborderError as error:
            self._note(caller, status_of(error)[1], str(error))
            await refuse(context, error)

    def _note(self, caller: Caller, outcome: str, reason: str) -> None:
        self._audit.note("refused", outcome, **caller.facts(), reason=reason)

    async def _within_limits(
        self, handler: Handler, caller: Caller, requests: AsyncIterator[Any], context: Context
    ) -> None:
        """Serve a call until it ends by itself or is ended: by a limit, by its token's end, or by time.

        Raises:
            CrossborderError: what it was ended by.
        """
        scope = asyncio.timeout(WATCH_SECONDS if caller.method == _WATCH else None)
        call = _OpenCall(caller, scope)
        try:
            async with scope:
                with self._limits.call(caller, call.end):
                    self._open.add(call)
                    try:
                        await self._serve(handler, requests, context)
                    finally:
                        self._open.discard(call)
        except TimeoutError:
            if not scope.expired():
                raise
            if call.ended_by is not None:
                raise call.ended_by from None

    async def _serve(self, handler: Handler, requests: AsyncIterator[Any], context: Context) -> None:
        given = requests if handler.request_streaming else await self._first(context)
        answer = _behaviour(handler)(given, context)
        if inspect.isasyncgen(answer):
            async for message in answer:
                await context.write(message)
        elif (message := await answer) is not None:
            await context.write(message)

    async def _first(self, context: Context) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                message = await context.read()
        except TimeoutError:
            raise self._limits.exceeded("handshake_seconds") from None
        if message is grpc.aio.EOF:
            raise RefusedError("expected a message, found the end of the call")
        return message


async def _unknown(_: object, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no method of this name")


_UNKNOWN: Handler = grpc.stream_stream_rpc_method_handler(_unknown)


def _unless_bytes(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Serialises what is not: models come as bytes, the same for every actor."""
    return serialize and (lambda message: message if isinstance(message, bytes) else serialize(message))


def _behaviour(handler: Handler) -> Callable[..., Any]:
    """The one of its four that a handler has."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)
