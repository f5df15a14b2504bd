"""What ingest decides: joins, pushes, duplicates, refusals, how long to hold back. No sockets, no event loop."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from common.config.run_config import RunConfig
from common.data import MAX_ENV_ERROR, MAX_EPISODES, ModelVersion, Schema
from common.errors import ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.process.log import LogThrottle, quote
from common.settings import Settings
from common.values import KEEP_ALL
from common.wire.codec import decode, schema_to_pb
from common.wire.compression import decompress
from common.wire.frames import Packed
from common.wire.pb import crossborder_pb2 as pb
from common.wire.rpc import PROTOCOL_VERSION, NotJoinedError, StoppingError, version_from_pb, version_to_pb
from learner.ingest.counts import IngestCounts
from learner.ingest.model_answers import ModelAnswer, ModelAnswers
from learner.ingest.promise import promise
from learner.ingest.quota import BATCHES_PER_REPLAY, AddressIds, ModelRepeats, ReplayShare
from learner.ingest.registry import MAX_RETURN, Registry
from learner.ingest.trainer_watch import TrainerWatch
from learner.ingest.turns import Turns
from learner.models.slots import ModelSlots
from learner.replay.ages import ItemAges
from learner.replay.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine, Record, summarize_row
from learner.replay.ratio import LiveRatio
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter
from learner.shared.actor_table import REPORTED, ActorState, map_actor_table
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.mapped import fence

log = logging.getLogger(__name__)
MAX_HOST, MAX_VERSION = 255, 32
MARKUP = frozenset("<>&\"'")
MAX_FIGURE = 2**53
"""Of all that an actor reports of itself; up to here floats count whole numbers exactly."""
_reported = attrgetter(*REPORTED)
MAX_KNOWN_MODELS = 4096
ENV_ERRORS_LOGGED_EVERY = 10.0
"""Seconds, over all actors."""


class IngestBoot(Settings):
    """What the trainer tells its ingest process on stdin."""

    config: RunConfig
    directory: Path
    run_id: str
    columns: list[dict[str, Any]]
    model_bytes: int
    listen: str
    metrics_port: int | None
    bell_fds: tuple[int, int]
    """Write end of the trainer's bell, read end of ingest's."""


class IngestCore:
    """All of ingest but the wire. Every method is quick and called from one thread.

    Raises:
        RunDirectoryError: the shared files cannot be opened.
    """

    def __init__(self, boot: IngestBoot) -> None:
        config = boot.config
        self.config = config
        self.run_id = boot.run_id
        self.schema = Schema.from_json(boot.columns)
        self.control = ControlBlock.open(boot.directory)
        self.memory = ReplayMemory(
            boot.directory / "replay",
            self.schema,
            config.replay.capacity,
            create=False,
            frame_capacity=config.replay.frame_capacity,
        )
        self.models = ModelSlots(boot.directory / "models", boot.model_bytes, create=False)
        self.registry = Registry(
            map_actor_table(boot.directory, create=False),
            config.server.max_actors,
            config.server.lost_seconds,
            config.server.limits.handshake_seconds,
        )
        self.ratio = LiveRatio(self.control, RatioLimiter.of(config, self.memory.began))
        self.limits = pb.Limits(
            max_rows=_rows_in_a_batch(config, self.memory),
            max_message_bytes=config.server.max_message_bytes,
            silence_seconds=config.server.lost_seconds,
            compressions=[pb.COMPRESSION_ZSTD],
        )
        self.turns = Turns()
        self.replay_share = ReplayShare(config.replay.capacity, config.server.replay_share)
        self.model_repeats = ModelRepeats()
        self.address_ids = AddressIds(
            config.server.address_actors, lambda incarnation: self.registry.row_of(incarnation) is not None
        )
        self.promised = promise(boot.directory, self.limits)
        """The largest limits that this run has told any actor."""
        self.counts = IngestCounts()
        self._env_errors = LogThrottle(ENV_ERRORS_LOGGED_EVERY)
        self.values = ValueRules.of(self.schema, config.server)
        self.quarantine = Quarantine(boot.directory, "ingest")
        self._writer = ReplayWriter(self.memory, self.registry.is_gone)
        self._ages = ItemAges(config.replay.capacity, self.memory.committed, time.monotonic())
        self._trainer_bell = Bell(-1, boot.bell_fds[0])
        self._config_json = config.actor_part().model_dump_json()
        self._own_config_json = {i: config.part_of(i).model_dump_json() for i in config.agent_overrides}
        self._answers = ModelAnswers(self.models, config.trainer.model_deltas)
        self._began = time.monotonic()
        self.trainer_watch = TrainerWatch(self.control, config.server.hung_seconds)
        self._published_at: OrderedDict[ModelVersion, float] = OrderedDict()  # Of the models that actors may have.

    def join(self, request: pb.JoinRequest, name: str = "") -> pb.JoinResponse:
        """Enter an actor whose token has this name, empty without a token.

        Raises:
            ProtocolMismatchError, RefusedError, StoppingError, TooManyActorsError, CursorsFullError: it may not enter.
        """
        if request.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"protocol version: the learner speaks {PROTOCOL_VERSION}, the actor {request.protocol_version}; "
                "install the same crossborder release on both"
            )
        if not request.incarnation:
            raise RefusedError("incarnation: expected a random number, found 0")
        _check_text("host", request.host, MAX_HOST)
        _check_text("version", request.version, MAX_VERSION)
        former = request.former_incarnation
        known = (request.incarnation, former)
        if self.control.stopping and not any(self.registry.row_of(incarnation) is not None for incarnation in known):
            raise StoppingError("the learner is shutting down")  # Actors that it knows may still hand over their items.
        self._writer.require_cursor(request.incarnation)
        facts = {"name": name, "version": request.version}
        actor_id = self.registry.join(request.incarnation, request.host, request.pid, former=former, **facts)
        row = self.row_of(request.incarnation)  # Its own for good, so it does not replay episodes of another process.
        self.control.joins += 1
        return pb.JoinResponse(
            actor_id=actor_id,
            run_id=self.run_id,
            seed=self.config.seed + row * self.config.envs_per_actor,
            epsilon=self.config.exploration.epsilon(actor_id),
            schema=schema_to_pb(self.schema),
            config_json=self._own_config_json.get(actor_id, self._config_json),
            last_seq=self._writer.last_seq(request.incarnation),
            newest=version_to_pb(self.models.newest()),
            limits=self.limits,
        )

    def check(self) -> pb.CheckResponse:
        """What a host may know before it acts."""
        return pb.CheckResponse(
            protocol_version=PROTOCOL_VERSION,
            unix_seconds=time.time(),
            actors=len(self.registry.present()),
            max_actors=self.config.server.max_actors,
            schema=schema_to_pb(self.schema),
            config_json=self._config_json,
            limits=self.limits,
        )

    def row_of(self, incarnation: int) -> int:
        """The row of an actor that has joined.

        Raises:
            NotJoinedError: it has not.
        """
        row = self.registry.row_of(incarnation)
        if row is None:
            raise NotJoinedError(f"incarnation {incarnation:016x} has not joined")
        return row

    def push(self, row: int, request: pb.PushItemsRequest) -> int:
        """Take one request of the actor in ``row``: store its batch unless it is stored, note its report.

        Returns:
            The highest seq stored.

        Raises:
            RefusedError, SchemaMismatchError: nothing was stored, naming actor, column, expected and found.
        """
        try:
            return self._take(row, request)
        except (RefusedError, SchemaMismatchError) as error:
            self.counts.refused[error.reason if isinstance(error, RefusedError) else "schema"] += 1
            if self.quarantine.has_room():
                self.quarantine.add(self._refused(row, request, error))
            raise type(error)(f"actor {self.registry.actor_id(row)}: {error}") from error

    def _refused(self, row: int, request: pb.PushItemsRequest, error: RefusedError | SchemaMismatchError) -> Record:
        """What people may want to know of a batch that was refused."""
        record = Record(
            reason=error.reason if isinstance(error, RefusedError) else "schema",
            message=str(error),
            actor_id=self.registry.actor_id(row),
            host=self.registry.host(row),
            incarnation=f"{request.incarnation:016x}",
            seq=request.seq,
        )
        bad = error.bad if isinstance(error, RefusedError) else None
        if bad is None:
            return record
        try:
            batch = decode(self.schema, request.rows, self._content(request, request.payload), KEEP_ALL)
        except RefusedError:
            return record  # It has more than one fault, and no rows that can be shown.
        columns = batch.columns if bad.column in batch.columns else {bad.column: batch.frames}
        values = summarize_row(columns, bad.row)
        return replace(record, column=bad.column, expected=bad.expected, found=bad.found, row=bad.row, values=values)

    def _take(self, row: int, request: pb.PushItemsRequest) -> int:
        if self.registry.row_of(request.incarnation) != row:
            raise RefusedError(
                f"incarnation: expected the one the stream began with, found {request.incarnation:016x}", "sequence"
            )
        last = self._writer.last_seq(request.incarnation)
        if request.seq == 0:
            if request.rows or request.payload:
                raise RefusedError(f"seq: expected 1 or more for a batch of {request.rows} rows, found 0", "sequence")
            figures = _figures(request.report)
        elif request.seq <= last:
            self.control.duplicates += 1
            return last
        else:
            payload = request.payload  # Once: each access copies it.
            batch = self._decode(request, payload, last)  # First: items name the column where a report has but a sum.
            figures = _figures(request.report)
            self._store(request, batch)
            self.control.payload_bytes += len(payload)
            self._note_batch(row, request)
            last = request.seq
        self.registry.seen(row, figures, building=request.report.building)
        if request.report.env_error:
            self._tell_env_error(row, request.report.env_error)
        if request.report.leaving:
            self.registry.set_state(row, ActorState.LEFT)
        return last

    def _tell_env_error(self, row: int, text: str) -> None:
        missed = self._env_errors.due()
        if missed is not None:
            lines, actor_id = quote(text[-MAX_ENV_ERROR:]), self.registry.actor_id(row)
            log.warning("an environment of actor %d failed (%d more before it):\n%s", actor_id, missed, lines)

    def _limits_of(self, incarnation: int) -> pb.Limits:
        """The limits that an actor process was told, maybe by an ingest process before this one."""
        return self.promised if self.registry.was_here_before(incarnation) else self.limits

    def _decode(self, request: pb.PushItemsRequest, payload: bytes, last: int) -> Packed:
        if request.seq != last + 1:
            raise RefusedError(f"seq: expected {last + 1}, found {request.seq}", "sequence")
        if request.schema_hash != self.schema.hash:
            raise SchemaMismatchError(f"schema: expected {self.schema.hash:016x}, found {request.schema_hash:016x}")
        limits = self._limits_of(request.incarnation)
        if not 1 <= request.rows <= limits.max_rows:
            raise RefusedError(f"rows: expected 1 to {limits.max_rows}, found {request.rows}", "rows")
        if request.behaviour.opt_steps > MAX_FIGURE:
            raise RefusedError(
                f"behaviour: expected opt steps up to {MAX_FIGURE}, found {request.behaviour.opt_steps}", "report"
            )
        return decode(self.schema, request.rows, self._content(request, payload), self.values)

    def _content(self, request: pb.PushItemsRequest, payload: bytes) -> bytes:
        """A payload as it was before it was compressed."""
        if request.compression == pb.COMPRESSION_ZSTD:
            most = self._limits_of(request.incarnation).max_message_bytes
            return decompress(payload, min(request.rows * self.schema.max_packed_bytes, most))
        if request.compression:
            raise RefusedError(f"compression: expected none or 1 (zstd), found {request.compression}", "payload")
        return payload

    def _store(self, request: pb.PushItemsRequest, batch: Packed) -> None:
        self._writer.append_packed(batch, request.incarnation, request.seq)
        self.control.batches += 1
        fence()  # The trainer must see the items before we look whether it waits for them.
        if self.control.trainer_waits:
            self._trainer_bell.ring()

    def _note_batch(self, row: int, request: pb.PushItemsRequest) -> None:
        behaviour, report = version_from_pb(request.behaviour), request.report
        self.registry.stored(row, request.rows, behaviour.opt_steps, report.episode_returns, report.episode_lengths)
        self.turns.stored(row, request.rows, self._excess(self.control.sampled))
        self.replay_share.stored(row, request.rows)
        if report.episode_successes:
            self.registry.note_successes(report.episode_successes)
            self.control.success_mean = self.registry.success_mean()  # Before the count, which says that there is one.
            self.control.success_episodes += len(report.episode_successes)
        self._note_lag(behaviour)

    def _note_lag(self, behaviour: ModelVersion) -> None:
        """Also of a model from before this process began, in which case it has lagged since then at least."""
        lag = max(0, self.models.newest().opt_steps - behaviour.opt_steps)
        self.control.policy_lag += 0.05 * (lag - self.control.policy_lag)
        self.counts.lag_steps.observe(lag)
        self.counts.lag_seconds.observe(time.monotonic() - self._published_at.get(behaviour, self._began))

    def settle_turns(self) -> int:
        """Let actors go on whose turn the trainer's draws have brought.

        Returns:
            The number of items drawn at which the next actor's turn comes; 0 if no actor waits.
        """
        sampled = self.control.sampled  # Once: the trainer counts on meanwhile.
        items = self.turns.settle(self._excess(sampled))
        return sampled + self.ratio.limiter().draws_for(items) if items else 0

    def _excess(self, sampled: int) -> float:
        """Items stored beyond those that the replay ratio allows.

        Nobody is held back before the first draw: an agent may have a warm-up of its own.
        """
        if self.control.stopping or not sampled:
            return 0.0
        return self.ratio.limiter().excess(self.memory.committed, sampled)

    def model(self, have: ModelVersion, *, takes_delta: bool) -> ModelAnswer | None:
        """The newest model, or None if ``have`` is the newest."""
        if have == self.models.newest():
            self.control.not_modified += 1
            return None
        answer = self._answers.since(have) if takes_delta else self._answers.whole()
        self._published_at[answer.version] = answer.published_at
        if len(self._published_at) > MAX_KNOWN_MODELS:
            self._published_at.popitem(last=False)
        self.control.fetches += 1
        self.control.model_bytes_sent += answer.n_bytes
        return answer

    def tick(self) -> None:
        """Publish totals for the trainer and give up actors that were silent for too long; a few times a second.

        It is a sign of life for the trainer, too, and looks for one of the trainer's.
        """
        self.control.ingest_beats += 1
        self.trainer_watch.look()
        for actor_id in self.registry.expire():
            log.warning("actor %d is lost: away for %g s", actor_id, self.config.server.lost_seconds)
        for actor_id in self.registry.forget_idle():
            log.warning("actor %d has joined and opened no stream in time; its id is free again", actor_id)
        self.control.actors_online = self.registry.count(ActorState.ONLINE)
        self.control.env_steps = self.registry.total("env_steps")
        if self.registry.has_episodes:  # Until then those of the process before it stand.
            self.control.return_mean = self.registry.return_mean()
            self.control.length_mean = self.registry.length_mean()
        self.control.episodes = self.registry.total("episodes")  # After the means: it says that there are some.
        self.quarantine.tick()
        self._ages.note(self.memory.committed, time.monotonic())
        self.control.oldest_item_at = self._ages.came_at(self.memory.first())


def _check_text(what: str, text: str, longest: int) -> None:
    """See that a text of an actor can be logged, shown on terminals and put into pages.

    Raises:
        RefusedError: it cannot.
    """
    if len(text) > longest:
        raise RefusedError(f"{what}: expected at most {longest} characters, found {len(text)}")
    if strange := {character for character in text if character in MARKUP or not character.isprintable()}:
        raise RefusedError(f"{what}: expected printable characters and no markup, found {min(strange)!a}")


def _rows_in_a_batch(config: RunConfig, memory: ReplayMemory) -> int:
    """Rows that a batch may have: a small part of the replay, and room for push.n_buffer."""
    part = max(config.push.n_buffer, config.replay.capacity // BATCHES_PER_REPLAY)
    return min(config.server.max_rows, memory.max_rows, part)


def _figures(report: pb.Report) -> tuple[float, ...]:
    """What a report says about its actor, as ``REPORTED``.

    Raises:
        RefusedError: it says something that cannot be.
    """
    returns, n_lengths = report.episode_returns, len(report.episode_lengths)
    if len(report.episode_successes) > n_lengths:
        raise RefusedError(
            f"report: expected at most {n_lengths} episode successes, one for each length, "
            f"found {len(report.episode_successes)}",
            "report",
        )
    if len(returns) != n_lengths or n_lengths > MAX_EPISODES:
        raise RefusedError(
            f"report: expected as many episode lengths as returns, at most {MAX_EPISODES}, "
            f"found {n_lengths} and {len(returns)}",
            "report",
        )
    if not sum(map(abs, returns)) <= MAX_RETURN:  # NaN fails too.
        raise RefusedError(
            f"report: expected finite episode returns of together up to {MAX_RETURN:g}, found {max(returns, key=abs)}",
            "report",
        )
    figures: tuple[float, ...] = _reported(report)
    if min(figures) < 0 or not sum(figures) <= MAX_FIGURE:  # NaN fails too; one by one they took longer.
        found = dict(zip(REPORTED, figures, strict=True))
        raise RefusedError(f"report: expected figures from 0 and together up to {MAX_FIGURE}, found {found}", "report")
    return figures
