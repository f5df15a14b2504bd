"""The gRPC service: calls the core. Nothing is decided here, and errors are answered by ``Admission``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc
import numpy as np

from common.data import NO_MODEL
from common.errors import CrossborderError
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import version_from_pb, version_to_pb
from learner.ingest.audit import AuditLog
from learner.ingest.caller import Caller, current_caller
from learner.ingest.core import IngestCore
from learner.ingest.limits import Limits
from learner.ingest.quota import TooManyOfAddressError
from learner.ingest.refusal import Context, status_of
from learner.shared.actor_table import ActorState
from learner.shared.bell import Bell
from learner.shared.mapped import fence

log = logging.getLogger(__name__)
NAMED = 50
"""Actors that one line of the log names at most."""
STILL_HERE_SECONDS = 1.0
"""An actor whose acknowledgement is held back hears from us this often."""


class Stream:
    """One actor's open stream; writes take turns, since ``stop`` may come between acknowledgements."""

    def __init__(self, core: IngestCore, context: Context) -> None:
        self._core = core
        self._context = context
        self._writing = asyncio.Lock()
        self._acked = 0
        self.awake = asyncio.Event()
        """Set when the actor's turn has come, or when training is over."""

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
        audit: told of every join.
    """

    def __init__(self, core: IngestCore, bell: Bell, limits: Limits, audit: AuditLog) -> None:
        self._core, self._limits, self._audit = core, limits, audit
        self._bell = bell
        self._streams: set[Stream] = set()
        self._newest: dict[int, Stream] = {}
        """An actor's newest stream: one that broke may end after its successor has begun."""
        self._held: dict[Stream, int] = {}
        """Streams that wait for their actor's turn, with its row of the actor table."""
        self._stream_ended = asyncio.Event()

    def on_bell(self) -> None:
        """The trainer rang: it has drawn what the next actor waits for, or it stops."""
        self._bell.clear()
        self._look_again()

    def _look_again(self) -> None:
        """Wake the streams whose actor's turn has come, and ask for the bell when the next one's comes."""
        control = self._core.control
        while True:
            wish = control.release_at = self._core.settle_turns()
            fence()  # The trainer must see the wish before we look at its counter for the last time.
            if wish > control.sampled or not wish:
                break
        free = [stream for stream, row in self._held.items() if not self._core.turns.holds(row)]
        for stream in self._streams if control.stopping else free:
            stream.awake.set()

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:  # noqa: ARG002, N802
        caller = current_caller.get()
        try:
            self._limits.join(caller)
            response = self._enter(request, caller)
        except CrossborderError as error:
            self._core.counts.joins_refused[status_of(error)[1]] += 1
            raise
        log.info("actor %d joined from %s (pid %d)", response.actor_id, request.host, request.pid)
        self._audit.note("join", "ok", **caller.facts(), **_process(request), actor=response.actor_id)
        return response

    def _enter(self, request: pb.JoinRequest, caller: Caller) -> pb.JoinResponse:
        ids = self._core.address_ids
        try:
            ids.require_room(caller.account, request.incarnation, request.former_incarnation)
        except TooManyOfAddressError as error:
            raise self._limits.exceeded("address_actors") from error
        response = self._core.join(request, caller.name)
        ids.joined(caller.account, request.incarnation)
        return response

    async def Check(self, request: pb.CheckRequest, context: Context) -> pb.CheckResponse:  # noqa: ARG002, N802
        return self._core.check()

    async def GetModel(  # type: ignore[override]  # noqa: N802 - Admission lets bytes pass
        self, request: pb.GetModelRequest, context: Context
    ) -> AsyncIterator[bytes]:
        await self._hold_model(context.peer())
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
                await self._hold(stream, row)
                await stream.send(acked)
                if request.seq:
                    self._core.counts.ack_seconds.observe(time.monotonic() - arrived)
        finally:
            self._streams.discard(stream)
            if row is not None and self._newest.get(row) is stream:
                del self._newest[row]
                self._close(row)
            self._stream_ended.set()

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
        if registry.state(row) in (ActorState.ONLINE, ActorState.BUILDING):
            registry.set_state(row, ActorState.AWAY)
            log.warning("actor %d: stream closed without goodbye", registry.actor_id(row))
        elif registry.state(row) == ActorState.LEFT:
            log.info("actor %d left", registry.actor_id(row))

    async def _hold(self, stream: Stream, row: int) -> None:
        """Wait until the replay ratio and the actor's share of the replay let it go on."""
        core = self._core
        if core.turns.holds(row):
            await self._hold_for_turn(stream, row)
        while not core.control.stopping and (seconds := core.replay_share.pause(row)):
            core.counts.quota_hold_seconds["items"] += await self._wait(stream, min(seconds, STILL_HERE_SECONDS))

    async def _hold_for_turn(self, stream: Stream, row: int) -> None:
        core, self._held[stream] = self._core, row
        try:
            self._look_again()
            while core.turns.holds(row):
                core.control.actor_hold_seconds += await self._wait(stream, STILL_HERE_SECONDS)
                self._look_again()  # Also after a second without a bell: the ratio may have been changed.
        finally:
            del self._held[stream]

    async def _wait(self, stream: Stream, seconds: float) -> float:
        """Wait to be woken, but only so long; the actor hears from us once in ``STILL_HERE_SECONDS``.

        Returns:
            The seconds waited.
        """
        started = time.monotonic()
        stream.awake.clear()
        try:
            async with asyncio.timeout(seconds):
                await stream.awake.wait()
        except TimeoutError:
            if seconds >= STILL_HERE_SECONDS:
                await stream.send()
        return time.monotonic() - started

    async def _hold_model(self, connection: str) -> None:
        """Wait if the connection asks again and again for the same model."""
        seconds = self._core.model_repeats.delay(connection, self._core.models.newest())
        if seconds:
            self._core.counts.quota_hold_seconds["models"] += seconds
            await asyncio.sleep(seconds)

    async def wind_up(self, seconds: float) -> None:
        """Tell every actor to stop and wait until all have left, or until the time is over.

        Actors that are away get the same time: they may join again, hear of the end and hand over what they have.
        """
        try:
            async with asyncio.timeout(seconds):
                # A stream that ends meanwhile need not hear of it.
                await asyncio.gather(*(stream.send() for stream in self._streams), return_exceptions=True)
                while self._streams or len(self._core.registry.working()):
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
        except TimeoutError:
            self._tell_who_is_missing(seconds)

    def _tell_who_is_missing(self, seconds: float) -> None:
        rows = self._core.registry.working()
        if not len(rows):  # Only streams of strangers are open.
            return
        names = [f"actor {row['actor_id']} ({_host(row)}, pid {row['pid']})" for row in rows[:NAMED]]
        others = [f"{len(rows) - NAMED} more"] if len(rows) > NAMED else []
        log.warning(
            "%d actors have not handed over within %g s; the items that they still have are lost: %s",
            len(rows),
            seconds,
            ", ".join(names + others),
        )


def _host(row: np.void) -> str:
    return str(row["host"].decode(errors="replace"))


def _process(request: pb.JoinRequest) -> dict[str, str | int]:
    """What the audit log says about an actor process; its incarnation is a secret."""
    return {"host": request.host, "pid": request.pid, "version": request.version}
