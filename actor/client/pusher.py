"""Sends rows on one stream, which is opened again whenever it breaks, and keeps them until acknowledged."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import grpc

from actor.client.actor_traces import ActorTraces
from actor.client.connector import Connector
from actor.client.fetcher import ModelFetcher
from actor.client.join_answer import JoinAnswer
from actor.client.requests import Requests, WaitingBatch, choose_group_rows
from actor.spool import Spool
from actor.stat import ActorCounters
from common.data import BufferedItems, ModelVersion
from common.errors import CrossborderError
from common.process.clocks import Backoff, Deadline
from common.process.log import LogThrottle
from common.wire.channel import PushItems
from common.wire.codec import split
from common.wire.large_field import Request
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import (
    HandshakeError,
    NotJoinedError,
    SharedIncarnationError,
    StoppingError,
    describe,
    typed_error,
    version_from_pb,
    version_to_pb,
)

log = logging.getLogger(__name__)
HEARTBEAT_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 15.0
"""A learner that is silent for longer is gone: it answers every heartbeat, even while it holds actors back."""
LINGER_SECONDS: Final = 0.05
"""After a message, batches wait this long for more batches: each message costs both sides about 0.5 ms."""
GRACE_SECONDS: Final = 2 * LINGER_SECONDS
"""While no replay ratio is in force, batches that are younger than this do not make the actor wait: so ``push.window``
does not limit the rate of an actor whose learner keeps up. With a ratio, each further batch would make the steps older
from which the learner learns."""
UNLIMITED: Final = 1 << 62
"""The window of an actor with ``env.rate_hz``: a robot does not wait for acknowledgements in an episode."""
BEHIND_SECONDS: Final = 1.0
"""The learner is behind if rows wait longer than this for an acknowledgement: a learner that keeps the replay ratio
acknowledges rows later."""
DROPS_LOGGED_EVERY: Final = 10.0
STEADY_SECONDS: Final = 1.0
"""After a stream that was open for less than this, the next wait may be longer: a learner that breaks each stream at
once hears of an actor less and less often."""
LAST_PUT_SECONDS: Final = 5.0
"""The time for putting batches once the actor has to end: a step in many environments may fill several batches."""


class PushStream:
    """Connects a spool and opens a stream that sends its batches, until it breaks or the spool is closed and empty.

    Three threads work on it. The thread that calls ``run`` hears responses, a gRPC thread pulls requests out of a
    generator, and one looks whether the learner is silent, also while gRPC waits until it may send. The threads share
    ``has_left`` and the time of the last response; each of the two has one writer.
    """

    def __init__(
        self,
        push_items: PushItems,
        incarnation: int,
        spool: Spool[WaitingBatch],
        requests: Requests,
    ) -> None:
        self._incarnation, self._spool, self._requests = incarnation, spool, requests
        self._epoch = spool.connect()
        self._heard_at = time.monotonic()
        self.has_left = False
        """Whether the actor has said goodbye."""
        self.was_silent = False
        """Whether it was ended because the learner had been silent for too long."""
        self._has_ended = threading.Event()
        self._call: Any = push_items(self._messages())

    def run(self, hear: Callable[[pb.PushItemsResponse], None]) -> str | None:
        """Pass responses to ``hear`` until the stream ends. Return why it broke; None if the learner ended it in order.

        Raises:
            CrossborderError: the learner refused for good.
        """
        threading.Thread(target=self._watch, name="silence", daemon=True).start()
        try:
            for response in self._call:
                self._heard_at = time.monotonic()
                hear(response)
        except grpc.RpcError as error:
            typed = typed_error(error)
            if typed is not None and not isinstance(typed, NotJoinedError | HandshakeError):
                raise typed from error
            return describe(error)
        finally:
            self._has_ended.set()
        return None

    def _watch(self) -> None:
        """End the stream once the learner has been silent for too long."""
        while not self._has_ended.wait(HEARTBEAT_SECONDS):
            if time.monotonic() - self._heard_at > SILENCE_SECONDS:
                log.warning("the learner has been silent for %g s", SILENCE_SECONDS)
                self.was_silent = True
                self.cancel()
                return

    def cancel(self) -> None:
        """End the stream; from any thread."""
        self._call.cancel()

    def _messages(self) -> Iterator[Request]:
        yield self._requests.make_heartbeat(self._incarnation)
        while True:
            unsent = self._spool.next_unsent(self._epoch, HEARTBEAT_SECONDS)
            if unsent is not None:
                yield self._requests.make_message(self._incarnation, *unsent)
            elif not self._spool.is_current(self._epoch):
                return
            elif self._spool.drained:
                self.has_left = True
                yield self._requests.make_heartbeat(self._incarnation, leaving=True)
                return
            else:
                yield self._requests.make_heartbeat(self._incarnation)


class RunChangedError(CrossborderError):
    """Another run answers at the learner's address."""


class SettingsChangedError(CrossborderError):
    """The run goes on with other settings of this actor's parts."""


class Pusher:
    """Sends batches by ``PushItems``, from the spool, until they are acknowledged.

    The acting thread puts batches into a spool. A thread of this object opens a stream that empties the spool, and
    hears the acknowledgements. When the stream breaks, it joins again and opens the next one.

    Args:
        connector: joins again after a broken stream.
        answer: to the first Join.
        fetcher: hears of newer models.
        counters: for reports.
        stopped: set when the learner says stop or when the pusher cannot go on.
    """

    def __init__(
        self,
        connector: Connector,
        answer: JoinAnswer,
        fetcher: ModelFetcher,
        counters: ActorCounters,
        stopped: threading.Event,
    ) -> None:
        self._connector, self._joined, self._fetcher = connector, answer, fetcher
        self._counters, self._stopped = counters, stopped
        # Rows wait in the spool, from which requests take them. An actor with a rate cannot wait for acknowledgements.
        push = answer.config.push
        self._never_waits = answer.config.env.rate_hz is not None
        self._spool: Spool[WaitingBatch] = Spool(
            push.spool_bytes,
            UNLIMITED if self._never_waits else push.window,
            group_rows=choose_group_rows(answer),
            linger=LINGER_SECONDS,
            drop_oldest=push.when_full == "drop_oldest",
            on_drop=self._count_dropped,
        )
        self._traces = ActorTraces()
        self._requests = Requests(answer, counters, self._spool, self._traces)
        self._drop_log = LogThrottle(DROPS_LOGGED_EVERY)
        self._stream: PushStream | None = None
        self.told_to_stop = False
        """Whether the learner has said that it ends."""
        self.is_run_over = False
        """Whether the learner has said that the run has reached its end."""
        # How it ends: ``send`` gives up at the last chance, and the thread once ``_has_given_up``.
        self._lost_rows = 0
        self._last_chance: Deadline | None = None
        self._has_given_up = False
        self._waits_no_more = threading.Event()
        """Ends the waits between tries to reach a learner that is away, once the actor has been asked to end."""
        self.changes: Sequence[str] = ()
        """Why the actor must hand over its rows and start anew, such as settings of its parts that have changed."""
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="pusher", daemon=True)
        self._thread.start()

    def send(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        """Take a batch of any size, and split it if it has more rows than the learner takes in one message."""
        for part in split(self._joined.schema, batch, self._joined.max_batch_rows):
            self._send_part(part, behaviour)

    def _send_part(self, batch: BufferedItems, behaviour: ModelVersion) -> None:
        kept = self._requests.make_batch(batch, behaviour)
        began = time.perf_counter()
        if not self._put(kept):
            log.warning("%d rows could not be handed over before the end", batch.rows)
            self._lost_rows += batch.rows
        self._counters.wait_seconds += time.perf_counter() - began

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until the rows of a step have room in the spool; False if they have none in time."""
        return self._spool.wait_for_room(2 * self._joined.schema.row_bytes, seconds)  # The last step has a final row.

    def wait_for_learner(self, seconds: float) -> bool:
        """Wait until the learner is not behind with acknowledgements; False if it still is after ``seconds``.

        Acknowledgements that wait for a mirror say nothing about the learner.
        """
        return self._spool.grace == math.inf or self._spool.wait_until_younger(BEHIND_SECONDS, seconds)

    def report_score(self, version: ModelVersion, score: float, record: Mapping[str, float], seconds: float) -> None:
        """Tell the learner the score of a candidate, in every report until there is a newer score.

        Args:
            version: of the candidate.
            score: higher is better.
            record: finite values, at most 64, by keys of at most 64 characters.
            seconds: that the evaluation took.
        """
        self._requests.score = pb.Score(model=version_to_pb(version), score=score, record=dict(record), seconds=seconds)

    def _put(self, batch: WaitingBatch) -> bool:
        """Wait for room in the spool; False if the actor has to end before there is any."""
        while self._last_chance is None or not self._last_chance.passed():
            if self._spool.put(batch, batch.n_bytes, batch.group_rows, 0.5):
                return True
            if self._stopped.is_set():
                self._last_chance = self._last_chance or Deadline(LAST_PUT_SECONDS)
        return False

    def _count_dropped(self, batch: WaitingBatch) -> None:
        self._counters.dropped_items += batch.rows
        if self._drop_log.due() is not None:
            log.warning("the spool is full (push.spool_bytes); rows dropped so far: %d", self._counters.dropped_items)

    def ready(self) -> None:
        """Tell the learner from now on that this actor has built its parts and acts."""
        self._requests.is_building = False

    @property
    def unacknowledged(self) -> int:
        """Batches that the learner has not acknowledged yet."""
        return len(self._spool)

    @property
    def lost_rows(self) -> int:
        """Rows that are lost if the actor ends now: not acknowledged, or without room before the end."""
        return self._lost_rows + sum(batch.rows for batch in self._spool.unacknowledged())

    def hand_over(self) -> None:
        """Send the remaining batches and leave; wait as long as the learner holds back, unless the actor has to end."""
        self._spool.close()
        while self._thread.is_alive() and not self._stopped.is_set():
            self._stopped.wait(HEARTBEAT_SECONDS)  # The pusher's thread sets ``_stopped`` at its end.

    def finish(self, seconds: float) -> int:
        """Send the remaining batches, say goodbye, end the stream; the number of batches that were not acknowledged."""
        self._spool.close()
        self._end_vain_waits()
        self._thread.join(seconds)
        if self._thread.is_alive():
            # The pusher's thread may open a stream at this moment. It looks at ``_has_given_up`` after it has named the
            # stream, and we look at the stream after we have given up: one of the two cancels it.
            self._has_given_up = True
            self._stopped.set()
            self._waits_no_more.set()  # It may be trying to join again.
            if self._stream is not None:
                self._stream.cancel()
            self._thread.join(1.0)
        return self.unacknowledged

    def _end_vain_waits(self) -> None:
        """Wait no longer for a learner that is away, if the actor has to end and there is nothing to hand over.

        The pusher's thread looks after it has disconnected, and ``finish`` after it has closed the spool: one of them
        sees both.
        """
        if self._stopped.is_set() and self._has_nothing_left and not self._spool.connected:
            self._waits_no_more.set()

    @property
    def _has_nothing_left(self) -> bool:
        """Whether the acting thread has put its last rows, and the learner has acknowledged them all."""
        return self._spool.drained and not self.unacknowledged

    def _run(self) -> None:
        try:
            self._stream_until_left()
        except StoppingError as farewell:
            log.info("%s", farewell)
        except Exception as error:  # noqa: BLE001 - the acting thread raises it as ``failure``
            self.failure = error
        finally:
            self._spool.disconnect()
            self._stopped.set()
            self._fetcher.wake()

    def _stream_until_left(self) -> None:
        backoff = Backoff()
        while True:
            connector, opened_at = self._connector, time.monotonic()
            stream = PushStream(connector.push_items, connector.incarnation, self._spool, self._requests)
            self._stream = stream
            if self._has_given_up:
                stream.cancel()
            is_clone = False
            try:
                broken = stream.run(self._hear)
            except SharedIncarnationError as error:
                is_clone, broken = True, str(error)
            self._spool.disconnect()
            has_told_all = (stream.has_left and broken is None) or (self.told_to_stop and self._has_nothing_left)
            if has_told_all or self._waits_no_more.is_set():
                return
            self._end_vain_waits()  # One more try follows, without a wait: it says goodbye if the learner is there.
            log.warning("connection to the learner lost, %d batches kept: %s", self.unacknowledged, broken or "closed")
            lost_at = time.monotonic()
            if lost_at - opened_at >= STEADY_SECONDS:
                backoff.reset()
            # A request to stop ends the present wait, but not those after it, while the last rows are handed over.
            (self._waits_no_more if self._stopped.is_set() else self._stopped).wait(backoff.next_delay())
            if is_clone:
                self._part_from_clone()
            if stream.was_silent:
                connector.refresh(anew=True)
            joined = self._join_again()
            away = time.monotonic() - lost_at
            log.info("joined run %s again as actor %d after %.1f s", joined.run_id, joined.actor_id, away)

    def _hear(self, response: pb.PushItemsResponse) -> None:
        self._spool.grace = math.inf if response.mirrors else 0.0 if response.paced else GRACE_SECONDS
        self._spool.hold(response.held and not self._never_waits)
        self._spool.acknowledge(response.acked_seq)
        newest = version_from_pb(response.newest)
        self._fetcher.announce(newest)
        if response.HasField("pool"):
            members = response.pool.members
            self._fetcher.announce_pool({version_from_pb(member.version): member.weight for member in members})
        self._traces.hear(response.acked_seq, newest, response.trace_parent)
        if response.stop:
            self.told_to_stop, self.is_run_over = True, response.run_over
            self._stopped.set()
            if self._requests.is_building:  # It has no rows yet, so the learner need not wait for it.
                self._spool.close()

    def _join_again(self) -> JoinAnswer:
        """Join as the same actor."""
        self._fetcher.get_model = self._connector.get_model
        answer = self._connector.join(self._waits_no_more)
        if answer.run_id != self._joined.run_id:
            raise RunChangedError(f"run {self._joined.run_id} has become run {answer.run_id}")
        self._joined.schema.require_equal(answer.schema, "this actor", "the learner")
        if answer.last_seq < self._spool.acknowledged:
            answer = self._join_as_new_incarnation(answer.last_seq)
        elif answer.last_seq > self._spool.numbered:
            self._part_from_clone()
            answer = self._connector.join(self._waits_no_more)
        self._fetcher.get_model = self._connector.get_model  # Other certificates may have opened another channel.
        self._fetcher.announce(answer.newest)
        self._spool.group_rows = choose_group_rows(answer)
        changes = self._joined.changes(answer)
        if changes:
            # The changes stay even if a later answer takes them back: the actor may be about to start anew.
            self.changes = changes
            log.warning(
                "the learner has changed settings of this actor, which hands over its rows and then starts anew: %s",
                ", ".join(changes),
            )
        self._counters.reconnects += 1
        return answer

    def _part_from_clone(self) -> None:
        """Take another incarnation, since another process pushes as the present one; then hand over and start anew.

        The actor starts anew because its random numbers are those of the other process too: only a new actor gets
        another seed.
        """
        log.warning(
            "another process pushes as this actor's incarnation, as after a machine or a process was cloned or brought "
            "back from a snapshot; this actor goes on as another one, and sends its %d batches under its new name",
            self.unacknowledged,
        )
        self._connector.renew(keeps_place=False)
        self._spool.renumber()
        self.changes = ("incarnation: another process has it too",)

    def _join_as_new_incarnation(self, last_seq: int) -> JoinAnswer:
        """Join in the place of the present incarnation, since the learner has lost batches that it had acknowledged.

        The learner takes the batches of an incarnation in order, and this actor no longer has the batches that were
        lost: the learner would refuse all later batches. A new incarnation begins at number 1. Nothing is stored twice,
        because the same rule keeps the learner from taking later batches of the former incarnation that are still on an
        old connection.
        """
        log.warning(
            "the learner had acknowledged %d messages of rows, and now has the first %d of them: the others are gone; "
            "the actor goes on as a new incarnation",
            self._spool.acknowledged,
            last_seq,
        )
        self._connector.renew(keeps_place=True)
        self._spool.renumber()
        return self._connector.join(self._waits_no_more)
