"""The gRPC service: calls the core. Nothing is decided here, and errors are answered by ``Admission``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import grpc

from common.data import NO_MODEL
from common.errors import CrossborderError
from common.pb import crossborder_pb2 as pb
from common.pb import crossborder_pb2_grpc as pb_grpc
from common.rpc import version_from_pb, version_to_pb
from learner.actor_table import ActorState
from learner.ingest.core import IngestCore
from learner.ingest.limits import Limits
from learner.ingest.refusal import Context, status_of
from learner.shared import Bell, fence

log = logging.getLogger(__name__)
STILL_HERE_SECONDS = 1.0
"""An actor whose acknowledgement is held back hears from us this often."""


class Stream:
    """One actor's open stream; writes take turns, since ``stop`` may come between acknowledgements."""

    def __init__(self, core: IngestCore, context: Context) -> None:
        self._core = core
        self._context = context
        self._writing = asyncio.Lock()
        self._acked = 0

    async def send(self, acked_seq: int | None = None) -> None:
        """Acknowledge up to ``acked_seq``, or repeat the last acknowledgement as a sign of life."""
        async with self._writing:
            self._acked = self._acked if acked_seq is None else acked_seq
            await self._context.write(
                pb.PushItemsResponse(
                    acked_seq=self._acked,
                    newest=version_to_pb(self._core.models.newest()),
                    stop=bool(self._core.control.stopping),
                )
            )


class LearnerServicer(pb_grpc.LearnerServiceServicer):
    """``LearnerService`` over an ``IngestCore``.

    Args:
        core: decides.
        bell: rung by the trainer when it stops or when held acknowledgements may go out.
        limits: on joins.
    """

    def __init__(self, core: IngestCore, bell: Bell, limits: Limits) -> None:
        self._core, self._limits = core, limits
        self._bell = bell
        self._streams: set[Stream] = set()
        self._newest: dict[int, Stream] = {}
        """An actor's newest stream: one that broke may end after its successor has begun."""
        self._rung = asyncio.Event()
        self._drained = asyncio.Event()

    def on_bell(self) -> None:
        """The trainer rang: whoever waits looks again."""
        self._bell.clear()
        self._core.control.release_at = 0
        self._rung.set()
        self._rung = asyncio.Event()

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:  # noqa: N802
        try:
            self._limits.join(context.peer())
            response = self._core.join(request)
        except CrossborderError as error:
            self._core.counts.joins_refused[status_of(error)[1]] += 1
            raise
        log.info("actor %d joined from %s (pid %d)", response.actor_id, request.host, request.pid)
        return response

    async def Check(self, request: pb.CheckRequest, context: Context) -> pb.CheckResponse:  # noqa: ARG002, N802
        return self._core.check()

    async def GetModel(  # type: ignore[override]  # noqa: N802 - Admission lets bytes pass
        self, request: pb.GetModelRequest, _: Context
    ) -> AsyncIterator[bytes]:
        have = version_from_pb(request.have) if request.HasField("have") else NO_MODEL
        answer = self._core.model(have, takes_delta=request.takes_delta)
        if answer is None:
            yield pb.GetModelResponse(version=version_to_pb(have), not_modified=True).SerializeToString()
            return
        for message in answer.messages:
            yield message

    async def PushItems(  # type: ignore[override]  # noqa: N802 - grpc.aio takes coroutines that read and write too
        self, _: AsyncIterator[pb.PushItemsRequest], context: Context
    ) -> None:
        stream = Stream(self._core, context)
        row = None
        self._streams.add(stream)
        try:
            while (request := await self._read(context, first=row is None)) is not None:
                arrived = time.monotonic()
                if row is None:
                    row = self._core.row_of(request.incarnation)
                    self._newest[row] = stream
                    self._core.registry.set_state(row, ActorState.ONLINE)
                acked = self._core.push(row, request)
                await self._hold(stream)
                await stream.send(acked)
                if request.seq:
                    self._core.counts.ack_seconds.observe(time.monotonic() - arrived)
        finally:
            self._streams.discard(stream)
            if row is not None and self._newest.get(row) is stream:
                del self._newest[row]
                self._close(row)
            if not self._streams:
                self._drained.set()

    async def _read(self, context: Context, *, first: bool) -> pb.PushItemsRequest | None:
        """The next request; None at the end of the stream or when the actor was silent for too long.

        Raises:
            OverLimitError: the first did not come in time.
        """
        server = self._core.config.server
        try:
            async with asyncio.timeout(server.limits.handshake_seconds if first else server.lost_seconds):
                request = await context.read()
        except TimeoutError:
            if first:
                raise self._limits.exceeded("handshake_seconds") from None
            log.warning("an actor was silent for %g s; its stream is closed", server.lost_seconds)
            return None
        return None if request is grpc.aio.EOF else request

    def _close(self, row: int) -> None:
        registry = self._core.registry
        if registry.state(row) == ActorState.ONLINE:
            registry.set_state(row, ActorState.AWAY)
            log.warning("actor %d: stream closed without goodbye", registry.actor_id(row))
        elif registry.state(row) == ActorState.LEFT:
            log.info("actor %d left", registry.actor_id(row))

    async def _hold(self, stream: Stream) -> None:
        """Wait until the replay ratio lets the next acknowledgement out."""
        control, inserted = self._core.control, self._core.memory.committed
        while (release_at := self._core.release_at(inserted)) > control.sampled:  # The ratio may change meanwhile.
            rung = self._rung
            control.release_at = min(control.release_at or release_at, release_at)
            fence()  # The trainer must see the wish before we look at its counter for the last time.
            if release_at <= control.sampled or control.stopping:
                return
            started = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STILL_HERE_SECONDS):
                    await rung.wait()
            control.actor_hold_seconds += time.monotonic() - started
            if not rung.is_set():
                await stream.send()

    async def wind_up(self, seconds: float) -> None:
        """Tell every actor to stop and wait until all have left, or until the time is over."""
        if not self._streams:
            return
        self._drained = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                # One that ends meanwhile need not hear of it.
                await asyncio.gather(*(stream.send() for stream in self._streams), return_exceptions=True)
                if self._streams:
                    await self._drained.wait()
        except TimeoutError:
            log.warning("%d actors did not leave within %g s", len(self._streams), seconds)
