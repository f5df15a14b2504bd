"""``LearnerService``: brings requests to ``joining`` and ``pushing``, and holds answers back for the ratio and quotas.

This module decides nothing itself. Its errors reach ``Admission``, which turns them into gRPC statuses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

import grpc

from common.data import NO_MODEL
from common.errors import CrossborderError, RefusedError, SchemaMismatchError
from common.shared.mapped import fence
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.pb import crossborder_pb2_grpc as pb_grpc
from common.wire.rpc import SharedIncarnationError, version_from_pb, version_to_pb
from learner.ingest.audit import AuditLog
from learner.ingest.cordons import CordonedError
from learner.ingest.core import IngestCore
from learner.ingest.gate import current_caller
from learner.ingest.joining import check, join, require_open
from learner.ingest.limits import CallLimits
from learner.ingest.pushing import push
from learner.ingest.refusals import Context, OverLimitError, status_of
from learner.shared.actor_table import ActorState, host_of
from learner.shared.bell import Bell

log = logging.getLogger(__name__)
MAX_NAMED = 50
"""The most actors that one line of the log names."""
MOST_UNMIRRORED = 65_536
"""The most batches of one actor whose ends are kept while they wait for the mirror; an actor could send any number."""
STILL_HERE_SECONDS = 1.0
"""How often an actor whose acknowledgement is held back gets a sign of life."""


class ActorStream:
    """One actor's open stream.

    ``wind_up`` may send ``stop`` on it while its own task sends an acknowledgement. The lock lets one write end before
    the other begins, as gRPC demands, and the later write never names a lower number than the earlier one.
    """

    def __init__(self, core: IngestCore, context: Context) -> None:
        self._core = core
        self._context = context
        self._writing = asyncio.Lock()
        self._acked = 0
        self._unmirrored = deque[tuple[int, int]]()
        """Batches that are stored and not acknowledged: seq, and an index below which all their rows are."""
        self.is_held = False
        """Whether the replay ratio holds the next acknowledgement back."""
        self.row: int | None = None
        """The actor's row of the actor table; None before its first request."""
        self._told_to_stop_at: float | None = None
        self._told_pool: pb.Pool | None = None
        self.awake = asyncio.Event()
        """Set when the actor's turn has come, or when training is over. The waiting task checks which of them it is."""

    async def send(self, acked_seq: int | None = None) -> None:
        """Acknowledge up to ``acked_seq``, or repeat the last acknowledgement as a sign of life.

        A stream acknowledges only batches that came on it. Whether the batches that this incarnation stored before
        are those of this process shows when it sends the last of them again.
        """
        async with self._writing:
            stop = self._has_to_stop()
            if stop and self._told_to_stop_at is None:
                self._told_to_stop_at = time.monotonic()
            self._acked = max(self._acked, self._find_acknowledged(acked_seq or 0))
            newest = self._core.newest(candidate=self.row is not None and self._core.evaluates(self.row))
            response = pb.PushItemsResponse(
                acked_seq=self._acked,
                newest=version_to_pb(newest),
                stop=stop,
                paced=self._core.ratio.samples_per_insert is not None,
                trace_parent=self._core.traces.take_learnt(self.row, newest.opt_steps),
                held=self.is_held and not stop,
                run_over=self._core.control.stopping > 1,
                mirrors=self._core.acknowledged_end is not None,
            )
            pool = self._core.pool
            if pool is not None and pool.message is not self._told_pool:
                self._told_pool = pool.message
                response.pool.CopyFrom(pool.message)
            await self._context.write(response)

    def _find_acknowledged(self, seq: int) -> int:
        """The highest seq that may be acknowledged once the batch ``seq`` is stored; 0 for ``seq``: no further batch.

        If acknowledgements wait for the mirror, they go out with later responses: an actor that waits sends heartbeats.
        """
        end = self._core.acknowledged_end
        if end is None:
            return seq
        if seq:
            if len(self._unmirrored) == MOST_UNMIRRORED:  # The last of them is acknowledged with this one.
                seq = max(seq, self._unmirrored.pop()[0])
            self._unmirrored.append((seq, self._core.memory.committed))
        acked = 0
        while self._unmirrored and self._unmirrored[0][1] <= end:
            acked = max(acked, self._unmirrored.popleft()[0])  # A batch that was sent again comes after later ones.
        return acked

    def _has_to_stop(self) -> bool:
        return bool(self._core.control.stopping) or (self.row is not None and self._core.is_drained(self.row))

    @property
    def is_leaving(self) -> bool:
        """Whether the actor was told to stop less than ``server.grace_seconds`` ago.

        During this time its acknowledgements are not held back: an actor that ends waits for them only a few seconds.
        """
        told_at, seconds = self._told_to_stop_at, self._core.config.server.grace_seconds
        return told_at is not None and time.monotonic() < told_at + seconds


class LearnerServicer(pb_grpc.LearnerServiceServicer):
    """``LearnerService`` over an ``IngestCore``. All of its methods run on the event loop's thread."""

    def __init__(self, core: IngestCore, bell: Bell, limits: CallLimits, audit: AuditLog) -> None:
        self._core, self._limits, self._audit = core, limits, audit
        self._bell = bell
        self._streams: set[ActorStream] = set()
        self._newest: dict[int, ActorStream] = {}
        """By row of the actor table, the actor's newest stream: a broken stream may end after the next has begun."""
        self._stream_ended = asyncio.Event()

    def on_bell(self) -> None:
        """The trainer rang: it has drawn the steps that the next actor waits for, or it stops."""
        self._bell.clear()
        self._wake_streams()

    def _wake_streams(self) -> None:
        """Wake the streams whose actor's turn has come, and ask for the bell at the next actor's turn."""
        # The trainer counts ``sampled`` up and then looks whether it has reached ``release_at``; ingest sets
        # ``release_at`` and then looks whether ``sampled`` has reached it. With a fence between the two steps on either
        # side, at least one of the processes notices. If ingest does, it settles the turns again without a bell.
        control = self._core.control
        while True:
            release_at = control.release_at = self._core.settle_turns()
            fence()
            if release_at > control.sampled or not release_at:
                break
        freed = self._core.turns.take_freed() & self._newest.keys()
        for stream in self._streams if control.stopping else [self._newest[row] for row in freed]:
            stream.awake.set()

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:  # noqa: ARG002, N802
        caller = current_caller.get()
        try:
            require_open(self._core, request)  # First, so that cordoned actors do not use up the limits on joins.
            self._limits.count_join(caller)
            ids = self._core.address_ids
            if not ids.has_room(caller.account, request.incarnation, request.former_incarnation):
                raise self._limits.count_refusal("address_actors")
            response = join(self._core, request, caller.name)
            if response.elsewhere:
                self._audit.note("join", "led", **caller.facts(), host=request.host, elsewhere=response.elsewhere)
                return response
            ids.note_join(caller.account, request.incarnation)
        except CordonedError:
            self._core.counts.joins_refused["cordoned"] += 1
            raise
        except CrossborderError as error:
            self._core.counts.joins_refused[status_of(error)[1]] += 1
            raise
        log.info("actor %d joined from %s (pid %d)", response.actor_id, request.host, request.pid)
        # The audit log never gets the incarnation: anybody who knows it can push in the actor's name.
        process: dict[str, str | int] = {"host": request.host, "pid": request.pid, "version": request.version}
        self._audit.note("join", "ok", **caller.facts(), **process, actor=response.actor_id)
        return response

    async def Check(self, request: pb.CheckRequest, context: Context) -> pb.CheckResponse:  # noqa: ARG002, N802
        return check(self._core, request)

    async def GetModel(  # type: ignore[override]  # noqa: N802 - Admission lets bytes pass
        self, request: pb.GetModelRequest, context: Context
    ) -> AsyncIterator[bytes]:
        core = self._core
        asked = version_from_pb(request.version) if request.HasField("version") else None
        newest = core.newest(candidate=request.candidate) if asked is None else asked
        reader = context.peer(), request.candidate if asked is None else asked
        seconds = core.model_repeats.count_request(reader, newest)
        if seconds:  # The connection asks again and again for the same model.
            core.counts.quota_hold_seconds["models"] += seconds
            await asyncio.sleep(seconds)
        have = version_from_pb(request.have) if request.HasField("have") else NO_MODEL
        if asked is None:
            answer = core.model(have, takes_delta=request.takes_delta, candidate=request.candidate)
        else:
            answer = core.opponent(asked)
        if answer is None:
            yield pb.GetModelResponse(version=version_to_pb(have), not_modified=True).SerializeToString()
            return
        for message in answer.messages:
            yield message

    async def PushItems(  # type: ignore[override]  # noqa: N802 - grpc.aio takes coroutines too; Admission reads by hand
        self, _: AsyncIterator[Request], context: Context
    ) -> None:
        stream = ActorStream(self._core, context)
        row = None
        self._streams.add(stream)
        try:
            while (request := await self._read(context, first=row is None)) is not None:
                arrived = time.monotonic()
                if row is None:
                    row = stream.row = self._core.row_of(request.head.incarnation)
                    self._require_not_held(row, request)
                    self._newest[row] = stream
                    self._core.registry.set_state(row, ActorState.ONLINE)
                elif self._newest.get(row) is not stream:
                    # An actor opens a stream after its earlier one is broken, and hears nothing of that one any more.
                    # A process that still speaks on the earlier stream is another one.
                    raise SharedIncarnationError(
                        f"actor {self._core.registry.actor_id(row)}: another process has joined as the same "
                        "incarnation and opened a stream, as after a machine or a process was cloned"
                    )
                acked, seq = push(self._core, row, request), request.head.seq
                request = None  # While the actor is held back, its message takes no memory.
                await self._hold(stream, row)
                await stream.send(acked)
                if seq:
                    self._core.counts.ack_seconds.observe(time.monotonic() - arrived)
        except (RefusedError, SchemaMismatchError):
            if row is not None:
                self._core.registry.set_state(row, ActorState.LEFT)  # No retry helps it, so it needs no goodbye.
            raise
        finally:
            self._streams.discard(stream)
            if row is not None and self._newest.get(row) is stream:
                del self._newest[row]
                self._close(row)
            self._stream_ended.set()

    async def _read(self, context: Context, *, first: bool) -> Request | None:
        """The next request; None at the end of the stream, or when the actor was silent for too long."""
        server = self._core.config.server
        try:
            async with asyncio.timeout(server.handshake_seconds if first else server.lost_seconds):
                request = await context.read()
        except TimeoutError:
            if first:
                raise self._limits.count_refusal("handshake_seconds") from None
            log.warning("an actor was silent for %g s; its stream is closed", server.lost_seconds)
            return None
        return None if request is grpc.aio.EOF else request

    def _close(self, row: int) -> None:
        registry = self._core.registry
        self._core.shares.note_end(row)
        if registry.state(row) in (ActorState.ONLINE, ActorState.BUILDING):
            registry.set_state(row, ActorState.AWAY)
            log.warning("actor %d: stream closed without goodbye", registry.actor_id(row))
        elif registry.state(row) == ActorState.LEFT:
            log.info("actor %d left", registry.actor_id(row))

    async def _hold(self, stream: ActorStream, row: int) -> None:
        """Wait until the replay ratio, and then the actor's share of the replay, let the actor go on."""
        core = self._core
        if core.turns.holds(row) and not stream.is_leaving:
            await self._hold_for_turn(stream, row)
        while not (core.control.stopping or stream.is_leaving) and (seconds := self._share_wait(row)):
            core.counts.quota_hold_seconds["items"] += await self._wait(stream, min(seconds, STILL_HERE_SECONDS))

    def _share_wait(self, row: int) -> float:
        return self._core.shares.seconds_to_wait(row, self._core.registry.name(row))

    def _require_not_held(self, row: int, request: Request) -> None:
        """Check that the first request of a stream has no batch while the actor is held back.

        An actor is held back after its batch. If it could open another stream with another batch meanwhile, neither the
        replay ratio nor its share would bound it. The batch is refused and does not wait, so it takes no memory.
        """
        is_held = self._core.turns.holds(row) or self._share_wait(row) > 0
        if request.head.seq and is_held and not self._core.control.stopping:
            raise OverLimitError(
                f"actor {self._core.registry.actor_id(row)}: expected a heartbeat (seq 0) at the beginning of a stream "
                f"while acknowledgements are held back, found batch {request.head.seq}; try again later"
            )

    async def _hold_for_turn(self, stream: ActorStream, row: int) -> None:
        core = self._core
        self._wake_streams()
        try:
            while core.turns.holds(row) and not stream.is_leaving:
                if not stream.is_held:
                    stream.is_held = True
                    await stream.send()  # Otherwise the actor would go on until its window is full.
                    continue  # Its turn may have come meanwhile.
                core.control.actor_hold_seconds += await self._wait(stream, STILL_HERE_SECONDS)
                self._wake_streams()  # Also after a second without a bell: an admin may have changed the ratio.
        finally:
            stream.is_held = False

    async def _wait(self, stream: ActorStream, seconds: float) -> float:
        """Wait until the stream is woken, at most ``seconds``, with signs of life meanwhile; return the seconds."""
        started = time.monotonic()
        stream.awake.clear()
        try:
            async with asyncio.timeout(seconds):
                await stream.awake.wait()
        except TimeoutError:
            if seconds >= STILL_HERE_SECONDS:
                await stream.send()
        return time.monotonic() - started

    async def wind_up(self, seconds: float) -> None:
        """Tell every actor to stop, and wait until all actors have left or the time is over.

        Actors that are away get the same time: they may join again, hear of the end and hand over their rows. Actors
        that have just joined get it too: they hear of the end on the stream that they begin in a moment.
        """
        try:
            async with asyncio.timeout(seconds):
                # Exceptions are those of streams that end at this moment and need not hear of the stop.
                await asyncio.gather(*(stream.send() for stream in self._streams), return_exceptions=True)
                registry = self._core.registry
                while self._streams or len(registry.working_rows()) or registry.count(ActorState.JOINED):
                    self._stream_ended.clear()  # No stream can end before the wait: only an ``await`` lets others run.
                    await self._stream_ended.wait()
        except TimeoutError:
            self._log_missing_actors(seconds)

    def _log_missing_actors(self, seconds: float) -> None:
        rows = self._core.registry.working_rows()
        if not len(rows):  # The open streams are those of callers that have not joined.
            return
        names = [f"actor {row['actor_id']} ({host_of(row)}, pid {row['pid']})" for row in rows[:MAX_NAMED]]
        others = [f"{len(rows) - MAX_NAMED} more"] if len(rows) > MAX_NAMED else []
        log.warning(
            "%d actors have not handed over within %g s; the rows that they still have are lost: %s",
            len(rows),
            seconds,
            ", ".join(names + others),
        )
