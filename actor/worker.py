"""One actor: join, build the parts, sample until told to stop, hand over the last rows (border's Actor)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch

from actor.acting import Acting, ActLoop
from actor.allowance import check_names
from actor.child_main import FINISH_SECONDS, ONLY_ACTS, ActorWork, run_child
from actor.client.connector import Connector, LearnerAwayError, new_incarnation
from actor.client.fetcher import ModelFetcher, PoolModels
from actor.client.join_answer import JoinAnswer
from actor.client.pusher import Pusher, RunChangedError, SettingsChangedError
from actor.client.shared_models import NeighbourModels, find_shared_models
from actor.episode_recording import EpisodeRecording
from actor.evaluating import CandidateScorer
from actor.fixed_rate import Control
from actor.proxy import ReplayBufferProxy
from actor.sampling.guard import NotReplacedError, guard_envs, watch_envs
from actor.sampling.opponents import Opponents
from actor.sampling.sampler import Sampler, require_lanes
from actor.stat import ActorCounters, ActorStat
from common.config.actor_config import ActorConfig
from common.config.pool_config import has_pool
from common.data import Schema
from common.errors import ConfigError, CrossborderError, LearnerUnreachableError, PluginError, describe_error
from common.lanes.lanes import Busy
from common.lanes.pace import Pace
from common.lanes.safe_stop import stop_safely
from common.lanes.watched_envs import Watch
from common.parts import Parts, build_parts
from common.process.child import say_error
from common.settings import validate
from common.wire.trust import Trust

log = logging.getLogger(__name__)
FIRST_MODEL_SECONDS = 60.0
"""The least time for which an actor that has joined waits until a model begins to come."""
LOOK_SECONDS = 0.005
"""An actor looks this often for a newer model and for its end: one look takes a tenth of the time of a fast step."""


class Actor:
    """One actor in this process.

    Args:
        addresses: the learner's HOST:PORT, or several, separated by commas; see ``Connector``.
        patience: seconds to wait for a learner, at the start and after each broken connection.
        trust: how to check the learner, what to prove to it, and which code it may name.
        tell: takes the error if this process cannot end in order, says why it ends, and returns the exit code.
        work: what the actor does.
        actor_id: the id that the actor must have, such as the number of its robot; None: the learner chooses it.
        act: acts in other lanes than environments of this process; None: the actor builds its environments.

    Raises:
        ConfigError: an address is not HOST:PORT, a file of ``trust`` cannot be read, or its settings contradict each
            other.
    """

    def __init__(
        self,
        addresses: str,
        patience: float,
        trust: Trust,
        tell: Callable[[CrossborderError], int],
        *,
        work: ActorWork = ONLY_ACTS,
        actor_id: int | None = None,
        act: ActLoop | None = None,
    ) -> None:
        self._patience, self._work, self._act_elsewhere = patience, work, act
        self._recording: EpisodeRecording | None = None
        self._pool: PoolModels | None = None
        self._trust, self._tell = trust, tell
        self._dropped_rows = 0
        self._stopped = threading.Event()
        self._asked_to_stop = False
        self._connector = Connector(
            addresses, new_incarnation(), patience, self._stopped, trust, evaluates=work.evaluates, actor_id=actor_id
        )

    def stop(self) -> None:
        """End the actor in order; from any thread."""
        self._asked_to_stop = True
        self._stopped.set()

    def run(self) -> ActorStat:
        """Act until the learner says stop or ``stop`` is called.

        The actor joins as a new actor if another run answers at the address, if the run was resumed with other
        settings, or if its learner stays away and the run has another learner. In the first and the last case it drops
        the rows that were not acknowledged, since the former learner may have stored them. The reports of the new actor
        count these rows.

        torch gets one thread in this process, since a host runs many actors.

        Raises:
            CrossborderError: the learner cannot be reached or refuses, or a part cannot be built.
        """
        torch.set_num_threads(1)
        try:
            while True:
                joined = self._connector.join()
                place = self._connector.endpoint.address
                log.info("joined run %s as actor %d of %s", joined.run_id, joined.actor_id, place)
                try:
                    return self._run_once(joined)
                except (RunChangedError, SettingsChangedError, LearnerAwayError) as change:
                    log.warning("starting over: %s", change)
                    # The actor learnt of another run when it joined it. So it has an id there already, and keeps it.
                    self._connector.renew(keeps_place=isinstance(change, RunChangedError))
                    # The pusher has set ``_stopped``. ``stop`` may be called at this moment and sets its own flag
                    # first, so looking at the flag after clearing the event misses no call.
                    self._stopped.clear()
                    if self._asked_to_stop:
                        self._stopped.set()
        finally:
            self._connector.close()

    def _run_once(self, joined: JoinAnswer) -> ActorStat:
        """Act as one incarnation.

        Raises:
            RunChangedError, SettingsChangedError, LearnerAwayError: the actor must join as a new one.
            CrossborderError: the learner cannot be reached or refuses, or a part cannot be built.
        """
        own = joined if self._work.evaluates else joined.for_acting()
        counters = ActorCounters()
        counters.dropped_items, self._dropped_rows = self._dropped_rows, 0
        self._pool = None if self._work.evaluates else self._make_pool(own.config, joined.run_id)
        fetcher = ModelFetcher(
            self._connector.get_model,
            self._stopped,
            max_bytes=0,
            candidates=self._work.evaluates,
            shared=find_shared_models(self._work.models, joined.run_id, self._stopped, candidates=self._work.evaluates),
            pool=self._pool,
        )
        fetcher.announce(joined.newest)
        pusher = Pusher(self._connector, joined, fetcher, counters, self._stopped)
        with ExitStack() as stack:
            try:
                self._build_and_work(own, pusher, fetcher, counters, stack)
            finally:  # Also when the work raises, and for an actor that refuses the learner's code.
                pusher.finish(FINISH_SECONDS)
                fetcher.end(1.0)
                has_to_end = self._asked_to_stop or pusher.told_to_stop
                if has_to_end or not isinstance(pusher.failure, LearnerAwayError | RunChangedError):
                    _warn_of_lost(pusher)
        failure: Exception | None = pusher.failure
        if has_to_end and isinstance(failure, LearnerUnreachableError | RunChangedError):
            log.info("%s", failure)  # It has looked for its learner only to hand over its last rows.
            failure = None
        failure = failure or fetcher.failure
        if isinstance(failure, LearnerAwayError | RunChangedError):
            self._dropped_rows = pusher.lost_rows
            log.warning(
                "%d unacknowledged rows are dropped: the former learner may have stored them", self._dropped_rows
            )
        if failure is not None:
            raise failure
        if pusher.changes and not has_to_end:
            raise SettingsChangedError(", ".join(pusher.changes))
        return ActorStat(joined.actor_id, counters.env_steps, counters.seconds)

    def _make_pool(self, config: ActorConfig, run_id: str) -> PoolModels | None:
        """The models against which this actor plays; None if it plays against none."""
        if not has_pool(config.env.params):
            return None
        directory, stopped = self._work.models, self._stopped
        if directory is None or not directory.is_dir():  # The trainer's file holds its newest models only.
            return PoolModels(lambda _: None)
        return PoolModels(lambda version: NeighbourModels(directory, run_id, stopped, opponent=version))

    def _build_and_work(
        self, joined: JoinAnswer, pusher: Pusher, fetcher: ModelFetcher, counters: ActorCounters, stack: ExitStack
    ) -> None:
        """Build the parts, and act or evaluate with them. ``stack`` closes them after the items have been handed over.

        The stream is opened before the parts are built, so that the learner knows of an actor whose environment takes
        minutes to build.
        """
        config, busy = joined.config, Busy()
        # 1. The parts. If they cannot be built, the learner hears why with the next report.
        try:
            parts = self._build(joined)
            stack.callback(parts.close)
            scorer: CandidateScorer | None = None
            if self._work.evaluates:
                scorer = CandidateScorer(config, parts, counters, Watch(self._stopped, busy), pusher.report_score)
                stack.callback(scorer.close)
        except Exception as error:
            counters.note_env_error(f"the parts of this actor cannot be built: {describe_error(error)}")
            raise
        # 2. What surrounds them: rebuilding of environments, opponents, the recording.
        if parts.lanes is not None:
            guard_envs(parts.lanes, config.env, counters, busy, self._stopped)
            if self._pool is not None:
                parts.lanes.pool = Opponents(config, parts, joined.seed, self._pool.weights, self._pool.load)
        self._recording = self._open_recording(parts, stack)
        # 3. Only now is the size of models known, and the learner may count this actor as acting.
        fetcher.allow(parts.agent.model_info())
        pusher.ready()
        # 4. The work, until the actor has to stop or to start anew.
        try:
            with watch_envs(busy, config.env, self._tell, counters, partial(self._hand_over_hung, pusher)):
                if scorer is not None:
                    scorer.run(fetcher.wait_newer, lambda: bool(pusher.changes))
                else:
                    fetcher.first(max(FIRST_MODEL_SECONDS, self._patience))
                    ends = partial(self._ends, pusher)
                    self._act(Acting(parts, joined, fetcher, pusher, counters, self._recording, ends))
        except PluginError as error:  # The learner hears why.
            counters.note_env_error(describe_error(error))
            raise
        if pusher.changes:
            pusher.hand_over()

    def _build(self, joined: JoinAnswer) -> Parts:
        """Build the parts that the learner names, if this host allows their code."""
        evaluates, elsewhere = self._work.evaluates, self._act_elsewhere
        check_names(joined.config, self._trust, is_own_host=joined.is_own_host, evaluates=evaluates)
        return build_agreed_parts(
            joined.config,
            joined.schema,
            seed=joined.seed,
            epsilon=0.0 if evaluates else joined.epsilon,
            n_envs=0 if evaluates or elsewhere is not None else None,
            device="cpu" if elsewhere is None else elsewhere.device,
        )

    def _act(self, acting: Acting) -> None:
        """Act elsewhere, at the environment's rate, or as fast as this process can."""
        rate_hz = acting.joined.config.env.rate_hz
        if self._act_elsewhere is not None:
            self._act_elsewhere(acting)
        elif rate_hz is not None:
            Control(acting, Pace(rate_hz, self._stopped, acting.counters.note_tick)).run()
        else:
            _act_freely(acting)

    def _ends(self, pusher: Pusher) -> bool:
        """Whether this actor has to stop or to start anew."""
        return self._stopped.is_set() or bool(pusher.changes)

    def _open_recording(self, parts: Parts, stack: ExitStack) -> EpisodeRecording | None:
        """The recording of the episodes, if they are recorded; ``stack`` closes it."""
        if self._work.record is None:
            return None
        if parts.processors:
            raise ConfigError("--record: expected a run of rows, found step_processor, which makes its own items")
        recording = EpisodeRecording(self._work.record, parts.rows)
        stack.callback(recording.close, FINISH_SECONDS)
        return recording

    def _hand_over_hung(self, pusher: Pusher) -> None:
        """Hand over the full batches, in the watchdog's thread.

        A batch that is not full is given up: the acting thread may be filling it.
        """
        pusher.finish(FINISH_SECONDS)
        _warn_of_lost(pusher)
        if self._recording is not None:
            self._recording.close(FINISH_SECONDS)


def _warn_of_lost(pusher: Pusher) -> None:
    if pusher.unacknowledged:
        log.warning("%d rows were not acknowledged before the end, and may be lost", pusher.lost_rows)


def _act_freely(acting: Acting) -> None:
    """Sample with the newest model until the actor has to stop or to start anew."""
    parts, joined, agent = acting.parts, acting.joined, acting.parts.agent
    sampler = Sampler(parts, acting.counters, joined.seed, recording=acting.recording)
    proxy = ReplayBufferProxy(joined.schema, joined.config.push, acting.pusher.send)
    agent.train()
    try:
        with suppress(NotReplacedError):
            while not acting.ends():
                model = acting.models.newer_than(proxy.version)
                if model is not None:
                    agent.sync_model(model)
                    proxy.version, sampler.version = model.version, model.version.opt_steps
                sampler.act_for(LOOK_SECONDS, agent, proxy, proxy.limits)
    finally:
        stop_safely(require_lanes(parts), joined.config.env)
    sampler.flush(agent, proxy)


def build_agreed_parts(
    config: ActorConfig, schema: Schema, *, seed: int, epsilon: float, n_envs: int | None = None, device: str = "cpu"
) -> Parts:
    """Build the parts that the learner named, and check that their rows are those of ``schema``.

    Args:
        config: the learner's.
        schema: the learner's.
        seed: of the agent.
        epsilon: the agent's.
        n_envs: plain environments to build; None: as many as ``envs_per_actor`` says.
        device: where the agent computes.

    Raises:
        PluginError: a part cannot be built here.
        SchemaMismatchError: this host's parts make other rows than the learner's.
    """
    try:
        n_envs = config.envs_per_actor if n_envs is None else n_envs
        parts = build_parts(config, seed=seed, epsilon=epsilon, device=device, n_envs=n_envs)
    except ConfigError as error:
        raise PluginError(f"what the learner names cannot be built here: {error}") from error
    parts.schema.require_equal(schema, "this actor", "the learner")
    return parts


def _make_actor(boot: Mapping[str, Any]) -> Actor:
    trust, work = validate(Trust, boot["trust"]), validate(ActorWork, boot["work"])
    return Actor(boot["address"], boot["patience"], trust, say_error, work=work)


def main() -> int:
    """A child of ``ActorManager``; see ``run_child``."""
    return run_child(_make_actor)


if __name__ == "__main__":
    sys.exit(main())
