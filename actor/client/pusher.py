"""Items out: one stream for the actor's life, opened again whenever it breaks; kept until acknowledged."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from actor.client.connector import Connector, Joined
from actor.client.fetcher import ModelFetcher
from actor.spool import Spool
from actor.stat import ActorCounters
from common.data import ENVELOPE_BYTES, MAX_EPISODES, ModelVersion
from common.errors import CrossborderError
from common.process.clocks import Deadline
from common.process.log import LogThrottle
from common.wire.codec import encode_together
from common.wire.compression import compress
from common.wire.frames import BufferedItems
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import (
    Backoff,
    NotJoinedError,
    StoppingError,
    describe,
    typed_error,
    version_from_pb,
    version_to_pb,
)

log = logging.getLogger(__name__)
GROUP_BYTES = 256 << 10
"""Batches that wait go out as one message of up to so many bytes; a stream carries no more with larger ones."""
GROUP_BYTES_OF_FRAMES = 2 << 20
"""The same of frames, before they are compressed to a hundredth."""
LINGER_SECONDS = 0.05
"""Right after a message, batches wait so long for more: each message costs both sides some 0.5 ms."""
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 15.0
"""The learner answers every heartbeat, also while it holds back; silent for so long, it is gone."""
DROPS_LOGGED_EVERY = 10.0
LAST_PUT_SECONDS = 5.0
"""For all that is put after the end was announced: a step in many environments may fill several batches."""


@dataclass(frozen=True)
class Batch:
    """What waits in the spool: items, the model that chose their first action, and episodes that ended meanwhile."""

    rows: int
    content: BufferedItems | bytes
    """Bytes: a payload that is compressed already, and goes by itself."""
    behaviour: ModelVersion
    returns: Sequence[float]
    lengths: Sequence[int]
    successes: Sequence[bool]


def _group_rows(joined: Joined) -> int:
    """Rows that go out together at most; in a batch by itself there may be more."""
    schema, frame = joined.schema, joined.schema.frame
    room = joined.max_message_bytes - ENVELOPE_BYTES
    if frame is None:
        likely = GROUP_BYTES // schema.row_bytes
    else:
        likely = GROUP_BYTES_OF_FRAMES // (schema.packed_row_bytes + frame.row_bytes)  # Each row brings one.
    return max(1, min(joined.max_rows, likely, room // schema.max_packed_bytes))


class RunChangedError(CrossborderError):
    """Another run answers at the learner's address."""


class SettingsChangedError(CrossborderError):
    """The run goes on with other settings of this actor's parts."""


class Pusher:
    """A ``BatchSink`` over ``PushItems``.

    Args:
        connector: joins again after a broken stream.
        joined: the first handshake.
        fetcher: hears of newer models.
        counters: for reports.
        stopped: set when the learner says stop or when it cannot go on.
    """

    def __init__(
        self,
        connector: Connector,
        joined: Joined,
        fetcher: ModelFetcher,
        counters: ActorCounters,
        stopped: threading.Event,
    ) -> None:
        self._connector, self._joined, self._fetcher = connector, joined, fetcher
        self._counters, self._stopped = counters, stopped
        push, schema = joined.config.push, joined.schema
        self._compresses = schema.frame is not None and joined.takes_zstd
        self._spool: Spool[Batch] = Spool(
            push.spool_bytes,
            push.window,
            group_rows=_group_rows(joined),
            linger=LINGER_SECONDS,
            max_seconds=push.spool_seconds or math.inf,
            drop_oldest=push.when_full == "drop_oldest",
            on_drop=self._count_dropped,
        )
        self._seldom = LogThrottle(DROPS_LOGGED_EVERY)
        self._heard = time.monotonic()
        self._call: Any = None
        self._leaving = False
        self._told_to_stop = False
        self._building = True
        self.changes: Sequence[str] = ()
        """Settings of the actor's parts that the learner has changed since: the actor must hand over and start anew."""
        self._last_chance: Deadline | None = None
        self._given_up = threading.Event()
        self.failure: CrossborderError | None = None
        self._thread = threading.Thread(target=self._run, name="pusher", daemon=True)
        self._thread.start()

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        content: BufferedItems | bytes = batch
        if self._compresses and not self._spool.connected:  # It may have to stay for long.
            content = self._encode([batch])
        began = time.perf_counter()
        if not self._put(Batch(batch.rows, content, behaviour, *self._counters.take_episodes())):
            log.warning("%d items could not be handed over before the end", batch.rows)
        self._counters.wait_seconds += time.perf_counter() - began

    def _encode(self, batches: Sequence[BufferedItems]) -> bytes:
        payload = encode_together(self._joined.schema, batches)
        return compress(payload) if self._compresses else payload

    def _put(self, batch: Batch) -> bool:
        """Wait for room in the spool; False if the actor has to end before there is any."""
        if isinstance(batch.content, bytes):
            size, rows = len(batch.content), self._spool.group_rows
        else:
            size, rows = batch.content.n_bytes, batch.rows
        while not self._spool.put(batch, size, rows, 0.5):
            if self._stopped.is_set():
                self._last_chance = self._last_chance or Deadline(LAST_PUT_SECONDS)
                if self._last_chance.passed():
                    return False
        return True

    def _count_dropped(self, batch: Batch) -> None:
        self._counters.dropped_items += batch.rows
        if self._seldom.due() is not None:
            log.warning("items dropped so far: %d; they were too old, or the spool full", self._counters.dropped_items)

    def ready(self) -> None:
        """Tell the learner from now on that this actor has built its parts and acts."""
        self._building = False

    def hand_over(self) -> None:
        """Send all that is left and leave. Takes as long as the learner holds it back, unless the actor has to end."""
        self._spool.close()
        while self._thread.is_alive() and not self._stopped.is_set():
            self._stopped.wait(HEARTBEAT_SECONDS)  # The thread sets it at its end.

    @property
    def told_to_stop(self) -> bool:
        """The learner ends."""
        return self._told_to_stop

    def finish(self, seconds: float) -> int:
        """Send what is left, say goodbye, end the stream; the number of batches that were not acknowledged."""
        self._spool.close()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._given_up.set()
            self._cancel()
            self._thread.join(1.0)
        return len(self._spool)

    def _cancel(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _report(self, *, leaving: bool = False) -> pb.Report:
        counters = self._counters
        return pb.Report(
            env_steps=counters.env_steps,
            seconds=counters.seconds(),
            leaving=leaving,
            env_seconds=counters.env_seconds,
            inference_seconds=counters.inference_seconds,
            wait_seconds=counters.wait_seconds,
            spool_bytes=self._spool.n_bytes,
            reconnects=counters.reconnects,
            dropped_items=counters.dropped_items,
            env_rebuilds=counters.env_rebuilds,
            env_hangs=counters.env_hangs,
            env_error=counters.take_env_error(),
            building=self._building,
        )

    def _heartbeat(self, *, leaving: bool = False) -> pb.PushItemsRequest:
        return pb.PushItemsRequest(incarnation=self._connector.incarnation, report=self._report(leaving=leaving))

    def _run(self) -> None:
        try:
            self._stream_until_left()
        except StoppingError as farewell:
            log.info("%s", farewell)
        except CrossborderError as error:
            self.failure = error
        finally:
            self._spool.disconnect()
            self._stopped.set()
            self._fetcher.wake()

    def _stream_until_left(self) -> None:
        backoff, last_seq = Backoff(), self._joined.last_seq
        while True:
            broken = self._stream(last_seq, backoff)
            if self._given_up.is_set() or self._told_to_stop or (self._leaving and broken is None):
                return
            log.warning("connection to the learner lost, %d batches kept: %s", len(self._spool), broken or "closed")
            self._spool.disconnect()
            lost_at = time.monotonic()
            self._stopped.wait(backoff.next_delay())
            joined = self._join_again()
            last_seq, away = joined.last_seq, time.monotonic() - lost_at
            log.info("joined run %s again as actor %d after %.1f s", joined.run_id, joined.actor_id, away)

    def _join_again(self) -> Joined:
        """Join as the same actor.

        Raises:
            RunChangedError: another run answers.
            CrossborderError: the learner cannot be reached or refuses.
        """
        self._connector.refresh()
        self._fetcher.get_model = self._connector.get_model
        joined = self._connector.join()
        if joined.run_id != self._joined.run_id:
            raise RunChangedError(f"run {self._joined.run_id} has become run {joined.run_id}")
        self._joined.schema.require_equal(joined.schema, "this actor", "the learner")
        if joined.last_seq < self._spool.acknowledged:
            joined = self._succeed_itself(joined.last_seq)
        self._fetcher.announce(joined.newest)
        self._spool.group_rows = _group_rows(joined)
        self._note_changes(joined)
        self._counters.reconnects += 1
        return joined

    def _succeed_itself(self, last_seq: int) -> Joined:
        """Go on as a new incarnation, since the learner has lost batches that it had acknowledged to the present one.

        Under the present one it would take those batches only. No old connection can deliver the batches that are
        renumbered here: the learner takes them in order, so it refuses all above the gap.
        """
        log.warning(
            "the learner had acknowledged %d messages of items, and now has the first %d of them: the others are gone; "
            "the actor goes on as a new incarnation",
            self._spool.acknowledged,
            last_seq,
        )
        self._connector.renew(keeps_place=True)
        self._spool.renumber()
        return self._connector.join()

    def _note_changes(self, joined: Joined) -> None:
        changes = self._joined.changes(joined)
        if changes:
            self.changes = changes  # From now on: the actor may be on its way to start anew.
            log.warning(
                "the learner has changed settings of this actor, which hands over its items and then starts anew: %s",
                ", ".join(self.changes),
            )

    def _stream(self, last_seq: int, backoff: Backoff) -> str | None:
        """One connection's life: why it broke, or None if it ended in order.

        Raises:
            CrossborderError: the learner refused for good.
        """
        epoch = self._spool.connect(last_seq)
        self._heard = time.monotonic()
        self._call = self._connector.stub.PushItems(self._requests(epoch))
        try:
            for response in self._call:
                self._hear(response, backoff)
        except grpc.RpcError as error:
            typed = typed_error(error)
            if typed is not None and not isinstance(typed, NotJoinedError):
                raise typed from error
            return describe(error)
        return None

    def _hear(self, response: pb.PushItemsResponse, backoff: Backoff) -> None:
        self._heard = time.monotonic()
        backoff.reset()
        self._spool.acknowledge(response.acked_seq)
        self._fetcher.announce(version_from_pb(response.newest))
        if response.stop:
            self._told_to_stop = True
            self._stopped.set()
            if self._building:  # It has nothing to hand over, and the learner need not wait for what it builds.
                self._spool.close()

    def _request(self, seq: int, batches: Sequence[Batch]) -> pb.PushItemsRequest:
        """Batches as they go out, with figures of now: those from when they were made would turn the learner's back."""
        schema, report = self._joined.schema, self._report()
        report.episode_returns.extend([value for batch in batches for value in batch.returns][-MAX_EPISODES:])
        report.episode_lengths.extend([value for batch in batches for value in batch.lengths][-MAX_EPISODES:])
        report.episode_successes.extend([value for batch in batches for value in batch.successes][-MAX_EPISODES:])
        return pb.PushItemsRequest(
            incarnation=self._connector.incarnation,
            seq=seq,
            schema_hash=schema.hash,
            rows=sum(batch.rows for batch in batches),
            payload=self._payload([batch.content for batch in batches]),
            behaviour=version_to_pb(batches[0].behaviour),
            report=report,
            compression=pb.COMPRESSION_ZSTD if self._compresses else pb.COMPRESSION_UNSPECIFIED,
        )

    def _payload(self, contents: Sequence[BufferedItems | bytes]) -> bytes:
        first = contents[0]
        if isinstance(first, bytes):
            assert len(contents) == 1, "what is compressed already goes by itself"
            return first
        return self._encode([content for content in contents if isinstance(content, BufferedItems)])

    def _requests(self, epoch: int) -> Iterator[pb.PushItemsRequest]:
        """What goes out on one connection, pulled by gRPC's own thread."""
        yield self._heartbeat()
        while True:
            unsent = self._spool.next_unsent(epoch, HEARTBEAT_SECONDS)
            if unsent is not None:
                yield self._request(*unsent)
            elif not self._spool.is_current(epoch):
                return
            elif self._spool.drained:
                self._leaving = True
                yield self._heartbeat(leaving=True)
                return
            elif time.monotonic() - self._heard > SILENCE_SECONDS:
                log.warning("the learner has been silent for %g s", SILENCE_SECONDS)
                self._cancel()
                return
            else:
                yield self._heartbeat()
