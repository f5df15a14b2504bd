"""What ingest decides: joins, pushes, duplicates, refusals, how long to hold back. No sockets, no event loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from common.codec import decode, schema_to_pb
from common.config import RunConfig
from common.data import MAX_EPISODES, ModelVersion, Schema
from common.errors import ProtocolMismatchError, RefusedError, SchemaMismatchError
from common.pb import crossborder_pb2 as pb
from common.rpc import PROTOCOL_VERSION, NotJoinedError, StoppingError, version_from_pb, version_to_pb
from common.settings import Settings
from learner.actor_table import ActorState, map_actor_table
from learner.ingest.registry import Registry
from learner.limiter import RatioLimiter
from learner.models import Blob, ModelSlots
from learner.replay.memory import ReplayMemory, ReplayWriter
from learner.shared import Bell, ControlBlock, fence

log = logging.getLogger(__name__)
MAX_HOST = 255


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
        self.limiter = RatioLimiter.of(config)
        self.limits = pb.Limits(
            max_rows=min(config.server.max_rows, self.memory.max_rows),
            max_message_bytes=config.server.max_message_bytes,
            silence_seconds=config.server.lost_seconds,
        )
        self._writer = ReplayWriter(self.memory)
        self._trainer_bell = Bell(-1, boot.bell_fds[0])
        self._config_json = config.actor_part().model_dump_json()
        self._own_config_json = {i: config.part_of(i).model_dump_json() for i in config.agent_overrides}
        self._blob: Blob | None = None

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
            self.control.refusals += 1
            raise type(error)(f"actor {self.registry.actor_id(row)}: {error}") from error

    def _take(self, row: int, request: pb.PushItemsRequest) -> int:
        if self.registry.row_of(request.incarnation) != row:
            raise RefusedError(f"incarnation: expected the one the stream began with, found {request.incarnation:016x}")
        _check_report(request.report)
        last = self._writer.last_seq(request.incarnation)
        if request.seq == 0:
            if request.rows or request.payload:
                raise RefusedError(f"seq: expected 1 or more for a batch of {request.rows} rows, found 0")
        elif request.seq <= last:
            self.control.duplicates += 1
            return last
        else:
            self._store(request, last)
            self._note_batch(row, request)
            last = request.seq
        self.registry.seen(row, request.report.env_steps, request.report.seconds)
        if request.report.leaving:
            self.registry.set_state(row, ActorState.LEFT)
        return last

    def _store(self, request: pb.PushItemsRequest, last: int) -> None:
        if request.seq != last + 1:
            raise RefusedError(f"seq: expected {last + 1}, found {request.seq}")
        if request.schema_hash != self.schema.hash:
            raise SchemaMismatchError(f"schema: expected {self.schema.hash:016x}, found {request.schema_hash:016x}")
        if not 1 <= request.rows <= self.limits.max_rows:
            raise RefusedError(f"rows: expected 1 to {self.limits.max_rows}, found {request.rows}")
        payload = request.payload  # One copy: every access of a bytes field makes another.
        batch = decode(self.schema, request.rows, payload)
        self._writer.append_packed(batch, request.incarnation, request.seq)
        self.control.batches += 1
        self.control.payload_bytes += len(payload)
        fence()  # The trainer must see the items before we look whether it waits for them.
        if self.control.trainer_waits:
            self._trainer_bell.ring()

    def _note_batch(self, row: int, request: pb.PushItemsRequest) -> None:
        behaviour = version_from_pb(request.behaviour)
        self.registry.stored(row, request.rows, behaviour.opt_steps, request.report.episode_returns)
        self._note_lag(behaviour)

    def _note_lag(self, behaviour: ModelVersion) -> None:
        newest = self.models.newest()
        if behaviour.incarnation == newest.incarnation:
            lag = max(0, newest.opt_steps - behaviour.opt_steps)
            self.control.policy_lag += 0.05 * (lag - self.control.policy_lag)

    def release_at(self) -> int:
        """Items the trainer must have drawn before the next acknowledgement may go out; 0 for at once.

        Nobody is held back before the first draw: an agent may have a warm-up of its own.
        """
        if self.control.stopping or not self.control.sampled:
            return 0
        return self.limiter.release_at(self.memory.committed)

    def model(self, have: ModelVersion) -> Blob | None:
        """The newest model, or None if ``have`` is the newest. Serialised once a version, for all actors."""
        newest = self.models.newest()
        if have == newest:
            self.control.not_modified += 1
            return None
        if self._blob is None or self._blob.version != newest:
            self._blob = self.models.read()
        assert self._blob is not None, "the first model is published before ingest starts"
        self.control.fetches += 1
        return self._blob

    def tick(self) -> None:
        """Publish totals for the trainer and give up actors that were silent for too long; a few times a second."""
        for actor_id in self.registry.expire():
            log.warning("actor %d is lost: away for %g s", actor_id, self.config.server.lost_seconds)
        self.control.actors_online = self.registry.count(ActorState.ONLINE)
        self.control.env_steps = self.registry.total("env_steps")
        self.control.episodes = self.registry.total("episodes")
        self.control.return_mean = self.registry.return_mean()


def _check_report(report: pb.Report) -> None:
    if len(report.episode_returns) != len(report.episode_lengths) or len(report.episode_returns) > MAX_EPISODES:
        raise RefusedError(
            f"report: expected as many episode lengths as returns, at most {MAX_EPISODES}, "
            f"found {len(report.episode_lengths)} and {len(report.episode_returns)}"
        )
