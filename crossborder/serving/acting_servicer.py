"""``ActingService`` over gRPC: each stream is a connection of one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from common.errors import CrossborderError
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from common.wire.rpc import BadMessageError
from crossborder.serving.acting_service import ActingService
from crossborder.serving.client_steps import Request
from crossborder.serving.connection import Connection
from learner.ingest.gate import current_caller
from learner.ingest.refusals import Context, status_of


class ActingServicer(pb_grpc.ActingServiceServicer):
    """Brings requests of gRPC to the sessions. ``Admission`` has let their callers in before."""

    def __init__(self, service: ActingService) -> None:
        self._service = service

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802, ARG002
        return self._service.describe(request)

    async def Act(  # type: ignore[override]  # noqa: N802 - grpc.aio takes coroutines too
        self,
        request_iterator: AsyncIterator[pb.ActRequest],
        context: Context,
    ) -> None:
        connection = Connection(self._service.sessions, current_caller.get().name, "gRPC")
        try:
            await context.write(connection.begin(request_of(await self._read_first(request_iterator))))
            await connection.talk(request_iterator, request_of, context.write)
        except CrossborderError as error:
            self._service.figures.refused[status_of(error)[1]] += 1
            raise
        finally:
            connection.end()

    async def _read_first(self, requests: AsyncIterator[pb.ActRequest]) -> pb.ActRequest:
        try:
            async with asyncio.timeout(self._service.handshake_seconds):
                return await anext(requests)
        except TimeoutError:
            raise self._service.limits.count_refusal("handshake_seconds") from None
        except StopAsyncIteration:
            raise BadMessageError("expected open or resume, found the end of the stream") from None


def request_of(message: pb.ActRequest) -> Request:
    """The request that a message has; None if it has none."""
    kind = message.WhichOneof("request")
    request: Request = None if kind is None else getattr(message, kind)
    return request
