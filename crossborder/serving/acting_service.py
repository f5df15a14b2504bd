"""What all doors of an acting service share, and the door of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from common.errors import CrossborderError
from common.wire.acting_payloads import VERSION
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from common.wire.rpc import BadMessageError
from crossborder.serving.client_steps import Request
from crossborder.serving.connection import Connection
from crossborder.serving.figures import Figures
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.sessions import Sessions
from learner.ingest.audit import AuditLog
from learner.ingest.gate import current_caller
from learner.ingest.limits import CallLimits
from learner.ingest.refusals import Context, status_of

HEALTH_PATH: Final = "/healthz"
STOP_SECONDS: Final = 5.0
"""The most time in which clients are told that the service ends: enough on a busy host, and over once all are told."""


@dataclass(frozen=True)
class ActingService:
    """An acting service behind its doors.

    Args:
        config: has the limits.
        sessions: of the clients.
        figures: counts.
        limits: on open calls and connections.
        audit: notes who was refused.
        handshake_seconds: the first request of a connection must come within this time.
    """

    config: ServingConfig
    sessions: Sessions
    figures: Figures
    limits: CallLimits
    audit: AuditLog
    handshake_seconds: float

    def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        """All that a client must know.

        Raises:
            BadMessageError: there is no policy of this name.
        """
        policy = self.sessions.policy(request.policy)
        observation, action = policy.description.leaves()
        config = self.config
        limits = pb.ActingLimits(
            max_lanes=config.max_lanes,
            max_sessions=config.max_sessions,
            max_message_bytes=config.max_message_bytes,
            resume_seconds=config.resume_seconds,
            silence_seconds=config.silence_seconds,
        )
        return pb.DescribeResponse(
            protocol_version=VERSION,
            observation=observation,
            action=action,
            limits=limits,
            explores=config.explore,
            version=policy.player.opt_steps,
            policies=filter(None, self.sessions.policies),
        )


class ActingServicer(pb_grpc.ActingServiceServicer):
    """The door of gRPC: each stream is a connection of one session. ``Admission`` has let their callers in before."""

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
