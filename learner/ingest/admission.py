"""The entrance for every call: checks its token, keeps the limits, and lets no call wait for ever.

Errors become gRPC statuses here, and refusals are noted in the audit log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from common.errors import CrossborderError, RefusedError
from common.process.log import LogThrottle
from common.wire.address import peer_address
from common.wire.channel import path_of
from common.wire.large_field import Request
from common.wire.rpc import ERROR_KEY
from common.wire.waiting import Traffic, WaitingBytes
from learner.ingest.audit import STRANGER, AuditLog
from learner.ingest.cordons import CordonedError
from learner.ingest.gate import HEALTH_METHODS, Caller, Gate, current_caller
from learner.ingest.limits import CallLimits
from learner.ingest.refusals import (
    Context,
    IngestCounts,
    OverLimitError,
    UnauthenticatedError,
    message_of,
    refuse,
    status_of,
)

log = logging.getLogger(__name__)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
WATCH_SECONDS: Final = 60.0
"""A stream of health (``Watch``) ends after this time; a client that still wants to know asks again."""
REFUSALS_LOGGED_EVERY: Final = 10.0
"""Seconds between two lines of the log, over all callers without a valid token."""
_READ_BY_HAND: Final = {path_of("PushItems"): Request.parse}
"""By method, the function that reads its requests in place of the generated code."""
_WATCH: Final = f"{HEALTH_METHODS}Watch"


class _OpenCall:
    """A call that is being served. Its task waits within ``scope``."""

    def __init__(self, caller: Caller, scope: asyncio.Timeout) -> None:
        self.caller, self._scope = caller, scope
        self.ended_by: CrossborderError | None = None

    def end(self, reason: CrossborderError) -> None:
        """End the call with this reason the next time that its task waits."""
        if self.ended_by is None and not self._scope.expired():
            self.ended_by = reason
            self._scope.reschedule(asyncio.get_running_loop().time())


class OpenCalls:
    """The calls that one door serves; limits end some of them, and so do tokens that are no longer valid."""

    def __init__(self, gate: Gate, limits: CallLimits) -> None:
        self._gate, self._limits = gate, limits
        self._open = set[_OpenCall]()

    @asynccontextmanager
    async def serving(self, caller: Caller, seconds: float | None = None) -> AsyncIterator[None]:
        """A context in which a call is served, until it ends by itself or is ended; after ``seconds`` it just ends.

        Raises:
            CrossborderError: the reason for which it was ended.
        """
        scope = asyncio.timeout(seconds)
        call = _OpenCall(caller, scope)
        try:
            async with scope:
                with self._limits.call(caller, call.end):
                    self._open.add(call)
                    try:
                        yield
                    finally:
                        self._open.discard(call)
        except TimeoutError:
            if not scope.expired():
                raise
            if call.ended_by is not None:
                raise call.ended_by from None

    def tick(self) -> None:
        """End the calls whose token is no longer valid; called a few times a second."""
        for call in tuple(self._open):
            if (objection := self._gate.objection(call.caller)) is not None:
                call.end(objection)


class Admission(grpc.aio.ServerInterceptor):
    """Checks every call's token, counts open calls within the limits, and limits the wait for a call's first message.

    gRPC itself reads the message of a unary call before it asks any interceptor, and waits for that message for ever.
    So every method is served as a stream, which is the same on the wire, and nothing of a refused call is read.

    Args:
        gate: knows callers. It is asked before any limit, so that calls of strangers never make a limit refuse a known
            caller.
        limits: on open calls.
        counts: of calls without a valid token.
        audit: notes refusals and revoked tokens.
        handshake_seconds: a unary call's message must come within this time.
        waiting: bounds the bytes of all connections.
    """

    def __init__(
        self,
        gate: Gate,
        limits: CallLimits,
        counts: IngestCounts,
        audit: AuditLog,
        *,
        handshake_seconds: float,
        waiting: WaitingBytes,
    ) -> None:
        self._gate, self._limits, self._counts, self._audit = gate, limits, counts, audit
        self._waiting = waiting
        self._handshake_seconds = handshake_seconds
        self._open = OpenCalls(gate, limits)
        self._names = gate.names()
        self._refusal_log = LogThrottle(REFUSALS_LOGGED_EVERY)

    def tick(self) -> None:
        """Look for changed tokens and end the open calls whose token is no longer valid; a few times a second."""
        before, self._names = self._names, self._gate.names()
        for role, names in self._names.items():
            for name in sorted(before[role] - names):
                log.warning("the %s '%s' has no valid token any more", role, name)
                self._audit.note("revoked", "ok", role=role, name=name)
            for name in sorted(names - before[role]):
                self._audit.note("admitted", "ok", role=role, name=name)
        self._open.tick()
        self._audit.tick()
        self._waiting.tick()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details) or _UNKNOWN
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        read = _READ_BY_HAND.get(method, handler.request_deserializer)
        connection: Traffic | None = None

        def deserialize(message: bytes) -> Any:
            assert connection is not None, "a message is read after its call has been admitted"
            connection.note_read(len(message))
            return read(message) if read else message

        async def serve(requests: AsyncIterator[Any], context: Context) -> None:
            nonlocal connection
            try:
                caller = self._gate.identify(method, metadata, context.peer())
            except UnauthenticatedError as error:
                await self._refuse_stranger("unknown" if handler is _UNKNOWN else method, context, error)
            else:
                connection = self._waiting.connection(caller.peer, caller.account, is_named=bool(caller.name))
                await self._serve_caller(handler, caller, connection, requests, context)

        return grpc.stream_stream_rpc_method_handler(serve, deserialize, _serializer_of(handler.response_serializer))

    async def _refuse_stranger(self, method: str, context: Context, unauthenticated: UnauthenticatedError) -> None:
        try:
            self.note_stranger(method, context.peer())
        except OverLimitError as error:
            await refuse(context, error)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(unauthenticated))

    def note_stranger(self, method: str, peer: str) -> None:
        """Note that a call had no valid token.

        Raises:
            OverLimitError: too many such calls came from this address.
        """
        self._audit.note("refused", STRANGER, method=method, peer=peer_address(peer))
        self._limits.count_failure(peer)
        self._counts.unauthenticated += 1
        missed = self._refusal_log.due()
        if missed is not None:
            log.warning("a call from %s had no valid token (%d more before it)", peer, missed)

    async def _serve_caller(
        self, handler: Handler, caller: Caller, connection: Traffic, requests: AsyncIterator[Any], context: Context
    ) -> None:
        current_caller.set(caller)  # Each call has its own task, and therefore its own context.
        try:
            await self._gate.require_own_user(caller)
            async with self._open.serving(caller, WATCH_SECONDS if caller.method == _WATCH else None):
                await self._serve(handler, connection, requests, context)
        except UnauthenticatedError as error:
            self.note_refusal(caller, error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except DecodeError as error:
            refused = RefusedError(f"{caller.method}: expected a message of crossborder, found other bytes: {error}")
            self.note_refusal(caller, refused)
            await refuse(context, refused)
        except CordonedError as error:
            # The actor asks again every few seconds while the cordon is in force, so these refusals are not logged.
            await refuse(context, error)
        except CrossborderError as error:
            self.note_refusal(caller, error)
            await refuse(context, error)
        except OSError as error:  # The disk may have room when the caller tries again; its path is for the log alone.
            if error.errno is None:
                raise
            self._audit.note("refused", "storage", **caller.facts(), reason=str(error))
            log.error("%s from %s: %s", caller.method, caller.peer, error)
            reason = f"a file cannot be read or written at the server's host: {error.strerror}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason, ((ERROR_KEY, "storage"),))

    def note_refusal(self, caller: Caller, error: CrossborderError) -> None:
        """Note in the audit log and in the log that a call of a known caller was refused or ended."""
        name = status_of(error)[1]
        reason = "the token was revoked" if isinstance(error, UnauthenticatedError) else str(error)
        self._audit.note("refused", name, **caller.facts(), reason=reason)
        log.warning("%s, from %s: %s", name, caller.told, message_of(error))

    async def _serve(
        self, handler: Handler, connection: Traffic, requests: AsyncIterator[Any], context: Context
    ) -> None:
        given = requests if handler.request_streaming else await self._read_first(context)
        answer = _behaviour(handler)(given, context)
        if inspect.isasyncgen(answer):
            async for message in answer:
                with connection.writing(len(message) if isinstance(message, bytes) else 0):
                    await context.write(message)
        elif (message := await answer) is not None:
            await context.write(message)

    async def _read_first(self, context: Context) -> Any:
        try:
            async with asyncio.timeout(self._handshake_seconds):
                message = await context.read()
        except TimeoutError:
            raise self._limits.count_refusal("handshake_seconds") from None
        if message is grpc.aio.EOF:
            raise RefusedError("expected a message, found the end of the call")
        return message


async def _unknown(_: object, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no method of this name")


_UNKNOWN: Handler = grpc.stream_stream_rpc_method_handler(_unknown)


def _serializer_of(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """A serializer that lets bytes pass: models are serialised once, for all actors."""
    return serialize and (lambda message: message if isinstance(message, bytes) else serialize(message))


def _behaviour(handler: Handler) -> Callable[..., Any]:
    """The function that serves a method: a handler has a function of one of four kinds."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)
