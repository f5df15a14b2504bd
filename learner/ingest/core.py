"""The core of ingest: the shared memory, the registry of actors, and how long to hold actors back.

``joining`` and ``pushing`` decide about one request each, over an ``IngestCore``; ``service`` and ``admin`` bring them
the requests. ``core``, ``joining`` and ``pushing`` use no sockets and no event loop, and one thread calls them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from common.config.run_config import RunConfig
from common.data import NO_MODEL, ModelVersion, Schema
from common.process.clocks import Stillness
from common.process.log import LogThrottle
from common.settings import HomePath, Settings
from common.shared.slots import ModelSlots
from common.wire.rpc import NotJoinedError
from learner.ingest.batch_limits import BatchLimits, present_limits
from learner.ingest.cordons import Cordons
from learner.ingest.fair_turns import BatchShares
from learner.ingest.leading import Leading
from learner.ingest.limits import AddressIds, ModelRepeats, Shares
from learner.ingest.model_answers import KEPT_MODELS, ModelAnswer, ModelAnswers
from learner.ingest.pool_answers import PoolAnswers
from learner.ingest.refusals import IngestCounts
from learner.ingest.registry import Registry
from learner.ingest.scores import CandidateScores, largest_return
from learner.replay.ages import RowAges
from learner.replay.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine
from learner.replay.ratio import LiveRatio
from learner.replay.value_rules import ValueRules
from learner.replay.writer import ReplayWriter
from learner.shared.actor_table import ActorState, map_actor_table
from learner.shared.bell import Bell
from learner.shared.control import ControlBlock
from learner.shared.followed_batch import BatchTraces
from learner.shared.mirror_block import MirrorBlock

log = logging.getLogger(__name__)


class TrainerWatch:
    """Logs once when the training loop has stood still for too long, and once when it goes on.

    A training loop that hangs cannot log that it hangs. Nothing is killed: a long opt step, checkpoint or evaluation
    looks the same as a hang.

    The trainer is the only writer of ``trainer_beats``, and ingest only compares the count with that of its last look.
    So it does not matter when the trainer writes, and nothing is locked.

    Args:
        control: shared with the trainer.
        hung_seconds: a loop that stands still for this long is logged; None logs nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self, control: ControlBlock, hung_seconds: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._control, self._hung_seconds = control, hung_seconds
        self._stillness = Stillness(lambda: control.trainer_beats, clock)
        self._has_logged = False
        self.silent_seconds = 0.0
        """How long the training loop has stood still; 0 before it begins and after it has ended."""

    def look(self) -> None:
        """Compare the count with that of the last look; called a few times a second."""
        is_training = self._control.trainer_beats and not self._control.stopping
        seconds = self._stillness.seconds()
        self.silent_seconds = seconds if is_training else 0.0
        is_hung = self._hung_seconds is not None and self.silent_seconds > self._hung_seconds
        if is_hung and not self._has_logged:
            log.error(
                "the trainer has shown no sign of life for %.0f s (server.hung_seconds): it hangs, or one opt step, "
                "one checkpoint or one step of an evaluation takes that long",
                seconds,
            )
        elif self._has_logged and not is_hung:
            log.warning("the trainer goes on")
        self._has_logged = is_hung


ENV_ERRORS_LOGGED_EVERY: Final = 10.0
UNFINISHED_LOGGED_EVERY: Final = 60.0
"""Seconds between two lines of the log about failed environments, and about unfinished episodes, over all actors."""


class IngestBoot(Settings):
    """The message from the trainer to its ingest process on stdin."""

    config: RunConfig
    directory: HomePath
    run_id: str
    columns: list[dict[str, Any]]
    message_bytes: int
    """The most bytes of one message from an actor."""
    model_bytes: int
    addresses: tuple[str, ...]
    """Ingest listens at the first HOST:PORT that is free, and so with the ports of the metrics."""
    metrics_ports: tuple[int | None, ...]
    bell_fds: tuple[int, int]
    """Write end of the trainer's bell, read end of ingest's."""
    rank: int = 0
    n_ranks: int = 1
    serves_again: bool = False
    """Whether an ingest process before this one has served with the same files of tokens and certificates."""


class ScoringActors:
    """The trainer's candidates, and the actors that score them."""

    def __init__(self, boot: IngestBoot, control: ControlBlock) -> None:
        self.slots = ModelSlots(boot.directory / "candidates", boot.model_bytes, create=False)
        self.answers = ModelAnswers(self.slots, 0)
        largest = largest_return(boot.config.evaluator)
        self.scores = CandidateScores(boot.directory / "score.json", self.slots, control, largest)
        self.actors = set[int]()
        """Rows of evaluating actors in the actor table."""


class IngestCore:
    """The state that all requests share. No method waits.

    Raises:
        RunDirectoryError: the shared files cannot be opened.
    """

    def __init__(self, boot: IngestBoot) -> None:
        config, directory = boot.config, boot.directory
        # 1. What an actor is told when it joins.
        self.config, self.run_id = config, boot.run_id
        self._actor_config_json = config.actor_part().to_json()
        self._own_config_json: dict[int | None, str] = {i: config.part_of(i).to_json() for i in config.overrides}
        self.schema = Schema.from_json(boot.columns)
        # 2. What the trainer and the mirror share with ingest.
        self.control = ControlBlock.open(directory)
        self.memory = ReplayMemory(directory / "replay", self.schema, config.replay.capacity, create=False)
        is_mirrored = config.storage.mirror is not None
        self.mirror = MirrorBlock.open(directory, writable=False) if is_mirrored else None
        """How far the run is mirrored; None if it is not."""
        self.trainer_bell = Bell(-1, boot.bell_fds[0])
        self.trainer_watch = TrainerWatch(self.control, config.server.hung_seconds)
        # 3. Which actors there are, and which may come.
        table, server = map_actor_table(directory, create=False), config.server
        self.registry = Registry(table, server.max_actors, server.lost_seconds, server.handshake_seconds)
        self.cordons = Cordons(directory / "cordons.json")
        self.address_ids = AddressIds(server.address_actors, self.registry.is_present)
        self.leading = Leading(directory, boot.rank, boot.n_ranks)
        # 4. The way of a batch into the replay.
        registry = self.registry
        self.writer = ReplayWriter(self.memory, registry.is_gone, registry.is_present, registry.least_needed)
        self.values = ValueRules.of(self.schema, server)
        self.quarantine = Quarantine(directory, "ingest")
        self._ages = RowAges(config.replay.capacity, self.memory.committed, time.monotonic())
        # 5. How much actors may send, and when they wait: the limits of a batch, each actor's share, the replay ratio.
        self.batch_limits = BatchLimits(directory, present_limits(config, boot.message_bytes), self.memory.capacity)
        self.shares = Shares(config.replay.capacity, server.replay_share)
        self.ratio = LiveRatio(self.control, RatioLimiter.of(config, self.memory.steps_began))
        self.turns = BatchShares(lambda row: registry.state(row) is ActorState.ONLINE, server.lost_seconds)
        # 6. The models that actors fetch.
        self.models = ModelSlots(directory / "models", boot.model_bytes, create=False)
        self.answers = ModelAnswers(self.models, KEPT_MODELS if config.trainer.sends_deltas else 0)
        self.model_repeats = ModelRepeats()
        self.scoring = ScoringActors(boot, self.control) if config.is_scored_by_actors else None
        """The candidates for evaluating actors; None if actors do not score the trainer's candidates."""
        self.pool = PoolAnswers.of(config, directory.parent)
        """The earlier models that play as opponents; None if nobody plays against them."""
        # 7. What metrics, the log and traces show.
        self.counts, self.traces = IngestCounts(), BatchTraces(directory)
        self.env_error_log = LogThrottle(ENV_ERRORS_LOGGED_EVERY)
        self.unfinished_log = LogThrottle(UNFINISHED_LOGGED_EVERY)

    def row_of(self, incarnation: int) -> int:
        """The row of an actor that has joined, in the actor table.

        Raises:
            NotJoinedError: it has not joined.
        """
        row = self.registry.row_of(incarnation)
        if row is None:
            raise NotJoinedError(f"incarnation {incarnation:016x} has not joined")
        return row

    @property
    def epoch(self) -> int:
        """Names this life of a run that is mirrored; 0 if the run has no mirror."""
        return int(self.mirror.epoch) if self.mirror is not None else 0

    @property
    def acknowledged_end(self) -> int | None:
        """The end of the rows that may be acknowledged, an absolute index; None: all that are stored."""
        if self.mirror is None or self.config.storage.acknowledge != "mirrored":
            return None
        return int(self.mirror.mirrored)

    def last_seq(self, incarnation: int) -> int:
        """The highest seq of an actor process that is stored, or mirrored if acknowledgements wait for the mirror."""
        stored, end = self.writer.last_seq(incarnation), self.acknowledged_end
        if end is None or end >= self.memory.committed:
            return stored
        return self.memory.log.find_seq(incarnation, end, stored)

    def config_json_of(self, actor_id: int | None) -> str:
        """The part of the configuration that this actor gets; None: the part of actors without own parameters."""
        return self._own_config_json.get(actor_id, self._actor_config_json)

    def evaluates(self, row: int) -> bool:
        """Whether the actor in this row of the actor table scores candidates and records no steps."""
        return self.scoring is not None and row in self.scoring.actors

    def is_drained(self, row: int) -> bool:
        """Whether the actor in this row of the actor table has to hand over its rows and leave."""
        drained = self.cordons.drained
        return bool(drained) and drained.covers(self.registry.actor_id(row), self.registry.host(row))

    def note_kind(self, row: int, *, evaluates: bool) -> None:
        """Note whether the actor that has joined in this row evaluates."""
        if self.scoring is not None:
            (self.scoring.actors.add if evaluates else self.scoring.actors.discard)(row)

    def settle_turns(self) -> int:
        """Let actors go on whose turn has come, by the steps that the trainer has drawn.

        Returns:
            The number of drawn steps at which the next actor's turn comes; 0 if no actor waits.
        """
        sampled = self.control.sampled  # Read once: the trainer counts on while ingest works this out.
        batch = 0 if self.control.stopping else self.control.batch_steps
        self.turns.settle_shares(batch, sampled, lacks_steps=self.control.trainer_waits_for > self.memory.steps)
        steps = self.turns.settle(self.excess(sampled))
        return sampled + max(1, self.ratio.limiter().draws_for(steps)) if steps else 0

    def excess(self, sampled: int) -> float:
        """Stored steps beyond the number that the replay ratio allows for ``sampled`` drawn steps.

        While the trainer waits and has seen all steps the result is 0: a queue, a view or an agent's warm-up may need
        more rows than there are, and if actors waited too, neither side could go on. Unseen steps may be enough for it.
        """
        steps = self.memory.steps
        if self.control.stopping or self.control.trainer_waits_for > steps:
            return 0.0
        return self.ratio.limiter().excess(steps, sampled)

    def newest(self, *, candidate: bool = False) -> ModelVersion:
        """The newest model for actors, or the newest candidate for evaluating actors; ``NO_MODEL`` before the first."""
        if not candidate:
            return self.models.newest()
        return self.scoring.slots.newest() if self.scoring is not None else NO_MODEL

    def model(self, have: ModelVersion, *, takes_delta: bool, candidate: bool = False) -> ModelAnswer | None:
        """The answer with the newest model or candidate, or None if ``have`` is the newest."""
        newest = self.newest(candidate=candidate)
        if newest in (have, NO_MODEL):
            self.control.not_modified += 1
            return None
        answers = self.scoring.answers if candidate and self.scoring is not None else self.answers
        answer = answers.since(have) if takes_delta else answers.whole()
        self.control.fetches += 1
        self.control.model_bytes_sent += answer.n_bytes
        return answer

    def opponent(self, version: ModelVersion) -> ModelAnswer | None:
        """The answer with a model of the pool, or None if there is no such model."""
        answer = self.pool.answer(version) if self.pool is not None else None
        if answer is not None:
            self.control.fetches += 1
            self.control.model_bytes_sent += answer.n_bytes
        return answer

    def tick(self) -> None:
        """Publish totals for the trainer and give up actors that were silent for too long; called a few times a second.

        The trainer takes each tick as a sign of life, and a tick looks for a sign of life of the trainer.
        """
        self.control.ingest_beats += 1
        self.trainer_watch.look()
        for actor_id in self.registry.expire():
            log.warning("actor %d is lost: away for %g s", actor_id, self.config.server.lost_seconds)
        for actor_id in self.registry.forget_idle():
            log.warning("actor %d has joined and opened no stream in time; its id is free again", actor_id)
        self.publish_totals()
        self.answers.note_newest()
        if self.pool is not None:
            self.pool.tick()
        self.quarantine.tick()
        self._ages.note(self.memory.committed, time.monotonic())
        self.control.oldest_item_at = self._ages.came_at(self.memory.first())

    def publish_totals(self) -> None:
        """Write what all actors together have done into the control block."""
        # Ingest is the only writer of these words, and the trainer may read between any two of them. So a count that
        # says whether a mean exists is written after the mean.
        self.control.actors_online = self.registry.count(ActorState.ONLINE)
        self.control.actors_present = len(self.registry.present_rows())
        self.control.env_steps = self.registry.total("env_steps")
        if self.registry.has_episodes:  # Until then the means of the former ingest process stay.
            self.control.return_mean = self.registry.return_mean()
            self.control.length_mean = self.registry.length_mean()
        self.control.episodes = self.registry.total("episodes")
