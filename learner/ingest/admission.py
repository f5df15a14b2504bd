"""Where every call comes in: within the limits, without a wait that has no end, and errors become statuses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from common.errors import CrossborderError, RefusedError
from learner.ingest.gate import Handler
from learner.ingest.limits import Limits
from learner.ingest.refusal import Context, refuse


class Admission(grpc.aio.ServerInterceptor):
    """Holds a place within the limits for every call, and waits only so long for the message that a call begins with.

    gRPC itself waits for the message of a unary call for ever and before anybody is asked; so every method is served as
    a stream, which is the same on the wire, and nothing of a call that is refused is read.

    Args:
        limits: on open calls.
        seconds: a call has so long for its first message.
    """

    def __init__(self, limits: Limits, seconds: float) -> None:
        self._limits, self._seconds = limits, seconds

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        async def serve(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                with self._limits.call(method, context.peer()):
                    await self._serve(handler, requests, context)
            except DecodeError as error:
                await refuse(context, RefusedError(f"{method}: expected a message of ours, found other bytes: {error}"))
            except CrossborderError as error:
                await refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(
            serve, handler.request_deserializer, _unless_bytes(handler.response_serializer)
        )

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


def _unless_bytes(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Serialises what is not: models come as bytes, the same for every actor."""
    return serialize and (lambda message: message if isinstance(message, bytes) else serialize(message))


def _behaviour(handler: Handler) -> Callable[..., Any]:
    """The one of its four that a handler has."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)
