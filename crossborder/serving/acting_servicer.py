"""``ActingService`` over gRPC: each stream is a connection of one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from common.errors import CrossborderError
from common.wire.pb import acting_pb2 as pb
from common.wire.pb import acting_pb2_grpc as pb_grpc
from crossborder.serving.connection import Connection
from crossborder.serving.description import VERSION
from crossborder.serving.figures import Figures
from crossborder.serving.serving_config import ServingConfig
from crossborder.serving.sessions import Sessions
from learner.ingest.gate import current_caller
from learner.ingest.refusals import BadMessageError, Context, OverLimitError, status_of


def describe(sessions: Sessions, config: ServingConfig, opt_steps: int) -> pb.DescribeResponse:
    """All that a client must know."""
    observation, action = sessions.description.leaves()
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
        version=opt_steps,
    )


class ActingServicer(pb_grpc.ActingServiceServicer):
    """Brings requests of gRPC to ``sessions``.

    Args:
        sessions: of the service.
        config: has the limits.
        figures: counts refusals.
        opt_steps: of the model that acts.
        handshake_seconds: the first request of a stream must come within this time.
    """

    def __init__(
        self, sessions: Sessions, config: ServingConfig, figures: Figures, opt_steps: int, handshake_seconds: float
    ) -> None:
        self._sessions, self._config, self._figures, self._opt_steps = sessions, config, figures, opt_steps
        self._handshake_seconds = handshake_seconds

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802, ARG002
        return describe(self._sessions, self._config, self._opt_steps)

    async def Act(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.ActRequest],
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[pb.ActResponse]:
        connection = Connection(self._sessions, current_caller.get().name)
        try:
            yield connection.begin(await self._read_first(request_iterator))
            async for answer in connection.answers(request_iterator):
                yield answer
        except CrossborderError as error:
            self._figures.refused[status_of(error)[1]] += 1
            raise
        finally:
            connection.end()

    async def _read_first(self, requests: AsyncIterator[pb.ActRequest]) -> pb.ActRequest:
        try:
            async with asyncio.timeout(self._handshake_seconds):
                return await anext(requests)
        except TimeoutError:
            raise OverLimitError(f"expected the first request within {self._handshake_seconds:g} s") from None
        except StopAsyncIteration:
            raise BadMessageError("expected open or resume, found the end of the stream") from None
