"""What ingest decides: joins, pushes, duplicates, refusals, how long to hold back. No sockets, no event loop."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from operator import attrgetter
from pathlib import Path
from typing import Any

from common.codec import decode, schema_to_pb
from common.compression import decompress
from common.config import RunConfig
from common.data import MAX_ENV_ERROR, MAX_EPISODES, ModelVersion, Schema
from common.errors import ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.frames import Packed
from common.log import Seldom, quoted
from common.pb import crossborder_pb2 as pb
from common.rpc import PROTOCOL_VERSION, NotJoinedError, StoppingError, version_from_pb, version_to_pb
from common.settings import Settings
from learner.actor_table import REPORTED, ActorState, map_actor_table
from learner.ingest.answer import ModelAnswer, ModelAnswers
from learner.ingest.counts import IngestCounts
from learner.ingest.nonfinite import NonFinite
from learner.ingest.registry import Registry
from learner.limiter import RatioLimiter
from learner.models import ModelSlots
from learner.ratio import LiveRatio
from learner.replay.ages import ItemAges
from learner.replay.memory import ReplayMemory, ReplayWriter
from learner.shared import Bell, ControlBlock, fence

log = logging.getLogger(__name__)
MAX_HOST = 255
MAX_FIGURE = 2**53
"""Of all that an actor reports of itself; up to here floats count whole numbers exactly."""
MAX_RETURNS = 1e300
"""All returns of one report together; a hundred reports can still be added up."""
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
        self.control = ControlBlock.at(boot.directory)
        self.memory = ReplayMemory(
            boot.directory / "replay",
            self.schema,
            config.replay.capacity,
            create=False,
            frame_capacity=config.replay.frame_capacity,
        )
        self.models = ModelSlots(boot.directory / "models", boot.model_bytes, create=False)
        self.registry = Registry(
            map_actor_table(boot.directory, create=False), config.server.max_actors, config.server.lost_seconds
        )
        self.ratio = LiveRatio(self.control, RatioLimiter.of(config))
        self.limits = pb.Limits(
            max_rows=min(config.server.max_rows, self.memory.max_rows),
            max_message_bytes=config.server.max_message_bytes,
            silence_seconds=config.server.lost_seconds,
            compressions=[pb.COMPRESSION_ZSTD],
        )
        self.counts = IngestCounts()
        self._env_errors = Seldom(ENV_ERRORS_LOGGED_EVERY)
        self.nonfinite = NonFinite(self.schema, config.server.clip_nonfinite)
        self._writer = ReplayWriter(self.memory)
        self._ages = ItemAges(config.replay.capacity, self.memory.committed, time.monotonic())
        self._trainer_bell = Bell(-1, boot.bell_fds[0])
        self._config_json = config.actor_part().model_dump_json()
        self._own_config_json = {i: config.part_of(i).model_dump_json() for i in config.agent_overrides}
        self._answers = ModelAnswers(self.models, config.trainer.model_deltas)
        self._began = time.monotonic()
        self._published_at: OrderedDict[ModelVersion, float] = OrderedDict()  # Of the models that actors may have.

    def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        """Enter an actor.

        Raises:
            ProtocolMismatchError, RefusedError, StoppingError, TooManyActorsError: it may not enter.
        """
        if request.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"protocol version: the learner speaks {PROTOCOL_VERSION}, the actor {request.protocol_version}; "
                "install the same crossborder release on both"
            )
        if not request.incarnation:
            raise RefusedError("incarnation: expected a random number, found 0")
        if len(request.host) > MAX_HOST:
            raise RefusedError(f"host: expected at most {MAX_HOST} characters, found {len(request.host)}")
        if not request.host.isprintable():  # It is logged, and shown on terminals.
            raise RefusedError(f"host: expected printable characters, found {request.host!r}")
        if self.control.stopping:
            raise StoppingError("the learner is shutting down")
        actor_id = self.registry.join(request.incarnation, request.host, request.pid)
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
            raise type(error)(f"actor {self.registry.actor_id(row)}: {error}") from error

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
        self.registry.seen(row, figures)
        if request.report.env_error:
            self._tell_env_error(row, request.report.env_error)
        if request.report.leaving:
            self.registry.set_state(row, ActorState.LEFT)
        return last

    def _tell_env_error(self, row: int, text: str) -> None:
        missed = self._env_errors.due()
        if missed is not None:
            lines, actor_id = quoted(text[-MAX_ENV_ERROR:]), self.registry.actor_id(row)
            log.warning("an environment of actor %d failed (%d more before it):\n%s", actor_id, missed, lines)

    def _decode(self, request: pb.PushItemsRequest, payload: bytes, last: int) -> Packed:
        if request.seq != last + 1:
            raise RefusedError(f"seq: expected {last + 1}, found {request.seq}", "sequence")
        if request.schema_hash != self.schema.hash:
            raise SchemaMismatchError(f"schema: expected {self.schema.hash:016x}, found {request.schema_hash:016x}")
        if not 1 <= request.rows <= self.limits.max_rows:
            raise RefusedError(f"rows: expected 1 to {self.limits.max_rows}, found {request.rows}", "rows")
        if request.behaviour.opt_steps > MAX_FIGURE:
            raise RefusedError(
                f"behaviour: expected opt steps up to {MAX_FIGURE}, found {request.behaviour.opt_steps}", "report"
            )
        if request.compression == pb.COMPRESSION_ZSTD:
            largest = min(request.rows * self.schema.max_packed_bytes, self.limits.max_message_bytes)
            payload = decompress(payload, largest)
        elif request.compression:
            raise RefusedError(f"compression: expected none or 1 (zstd), found {request.compression}", "payload")
        return decode(self.schema, request.rows, payload, self.nonfinite)

    def _store(self, request: pb.PushItemsRequest, batch: Packed) -> None:
        self._writer.append_packed(batch, request.incarnation, request.seq)
        self.control.batches += 1
        fence()  # The trainer must see the items before we look whether it waits for them.
        if self.control.trainer_waits:
            self._trainer_bell.ring()

    def _note_batch(self, row: int, request: pb.PushItemsRequest) -> None:
        behaviour, report = version_from_pb(request.behaviour), request.report
        self.registry.stored(row, request.rows, behaviour.opt_steps, report.episode_returns, report.episode_lengths)
        self._note_lag(behaviour)

    def _note_lag(self, behaviour: ModelVersion) -> None:
        """Also of a model from before this process began, in which case it has lagged since then at least."""
        lag = max(0, self.models.newest().opt_steps - behaviour.opt_steps)
        self.control.policy_lag += 0.05 * (lag - self.control.policy_lag)
        self.counts.lag_steps.observe(lag)
        self.counts.lag_seconds.observe(time.monotonic() - self._published_at.get(behaviour, self._began))

    def release_at(self, inserted: int) -> int:
        """Items the trainer must have drawn before ``inserted`` items may be acknowledged; 0 for at once.

        Nobody is held back before the first draw: an agent may have a warm-up of its own.
        """
        if self.control.stopping or not self.control.sampled:
            return 0
        return self.ratio.limiter().release_at(inserted)

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
        """Publish totals for the trainer and give up actors that were silent for too long; a few times a second."""
        for actor_id in self.registry.expire():
            log.warning("actor %d is lost: away for %g s", actor_id, self.config.server.lost_seconds)
        self.control.actors_online = self.registry.count(ActorState.ONLINE)
        self.control.env_steps = self.registry.total("env_steps")
        self.control.episodes = self.registry.total("episodes")
        self.control.return_mean = self.registry.return_mean()
        self.control.length_mean = self.registry.length_mean()
        self._ages.note(self.memory.committed, time.monotonic())
        self.control.oldest_item_at = self._ages.came_at(self.memory.first())


def _figures(report: pb.Report) -> tuple[float, ...]:
    """What a report says about its actor, as ``REPORTED``.

    Raises:
        RefusedError: it says something that cannot be.
    """
    returns, n_lengths = report.episode_returns, len(report.episode_lengths)
    if len(returns) != n_lengths or n_lengths > MAX_EPISODES:
        raise RefusedError(
            f"report: expected as many episode lengths as returns, at most {MAX_EPISODES}, "
            f"found {n_lengths} and {len(returns)}",
            "report",
        )
    if not sum(map(abs, returns)) <= MAX_RETURNS:  # NaN fails too.
        raise RefusedError(
            f"report: expected finite episode returns of up to {MAX_RETURNS:g}, found {max(returns, key=abs)}", "report"
        )
    figures: tuple[float, ...] = _reported(report)
    if min(figures) < 0 or not sum(figures) <= MAX_FIGURE:  # NaN fails too; one by one they took longer.
        found = dict(zip(REPORTED, figures, strict=True))
        raise RefusedError(f"report: expected figures from 0 and together up to {MAX_FIGURE}, found {found}", "report")
    return figures
