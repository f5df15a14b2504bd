"""The learner host: wiring, start-up and shutdown (border's ``train_async``, over real processes).

Start-up (``LearnerServer.__init__``), each step after the one before:
    1. the run directory is made, or found to resume, and locked
    2. the agent is built and the schema of the rows found
    3. shared memory is made or opened: replay, control block, model slots
    4. the state of the run is restored, the resolved configuration written, the evaluator's process started
    5. the first model is published; ingest is started and listens; /metrics is served; ``endpoints.json`` is written
    6. local actors are started
Training (``LearnerServer.train``), then shutdown after every kind of end:
    1. ``Learner.finish``: stop is announced to the actors, the last model published, recorders flushed, ``final/``
       saved, the last policy scored, the last checkpoint taken
    2. Prometheus scrapes the last figures, if the run has finished and Prometheus watches it
    3. ingest takes the rows that actors still have (at most ``server.grace_seconds``) and ends
    4. local actors end, recorders are closed, the evaluator's process ends, the learning curve is drawn
    5. the replay is synced and closed, environments are closed, the lock is given back
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Self

from actor.manager import ActorManager
from actor.stat import ActorStat
from common.config.run_config import FREE_PORTS, RunConfig
from common.config.server_config import ServerConfig
from common.cores import divide_cores, write_cores
from common.errors import ConfigError, CrossborderError, DivergedError, RankLostError
from common.process.spare import Spare
from common.wire.held_port import listen_at_first
from common.wire.trust import ANY, Trust
from learner.evaluation.actor_scoring import CANDIDATES, ActorScoring
from learner.ingest.ingest_process import ComingIngest, IngestProcess
from learner.loop.intake import Intake
from learner.loop.learner import do_nothing
from learner.loop.opt_traces import OptTraces
from learner.loop.rank import Rank
from learner.loop.run import Result, Run, open_rank
from learner.loop.summaries import actor_stats
from learner.loop.together import Together
from learner.loop.trainer_metrics import TrainerCollector
from learner.loop.wiring import make_learner
from learner.models.publisher import ModelPublisher
from learner.ranks.beginning import Beginning
from learner.ranks.group import Group
from learner.ranks.place import Place
from learner.records.exposition import MetricsServer
from learner.records.status import Status
from learner.replay.ratio import LiveRatio
from learner.shared.actor_table import map_actor_table
from learner.shared.control import ControlBlock
from learner.storage.origin import Origin

log = logging.getLogger(__name__)
LEAVE_SECONDS = 2.0
"""Local actors get this long to end. Ingest has taken their rows already, within its own grace period."""


@dataclass(frozen=True)
class AsyncResult(Result):
    """The outcome of a run with actors."""

    actors: list[ActorStat]


class LearnerServer:
    """Everything on the learner host, from configuration to summary.

    The constructor starts it, and from then on actors can join. Use it once, as a context manager.

    Args:
        config: checked already.
        local_actors: number of actor workers to run on this host.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.
        coming_ingest: a process that becomes ingest, which the caller closes; None starts such a process.
        coming_actors: processes that become the local actors, which the caller ends; None starts them.
        place: of this process among the ranks, whose own configuration is ``config``; None: it trains alone.
        when_met: called once the ranks have found each other; from then on a rank that ends alone stops all others.

    Raises:
        CrossborderError: something could not be built, opened or listened on; all processes and files that were already
            open are closed.
    """

    def __init__(
        self,
        config: RunConfig,
        local_actors: int = 0,
        *,
        resume: bool = False,
        origin: Origin | None = None,
        coming_ingest: ComingIngest | None = None,
        coming_actors: Sequence[Spare] | None = None,
        place: Place | None = None,
        when_met: Callable[[], None] = do_nothing,
    ) -> None:
        self.config = config
        self.place = place or Place()
        self.failure: CrossborderError | None = None
        """Why a part of the system cannot go on; None while all parts can."""
        self.local_actors: ActorManager | None = None
        with ExitStack() as stack:
            self._coming_ingest = coming_ingest or stack.enter_context(ComingIngest())
            group = self._open_group(stack)
            if group is not None:
                when_met()
            directory, earlier, beginning = open_rank(config, stack, group, resume=resume, origin=origin)
            origin = origin if self.place.leads else None
            self.run = run = stack.enter_context(Run(config, directory, earlier, origin=origin, place=self.place))
            self.buffer, shared = run.buffer, directory.shared
            # The files of a resumed run are there already, unless the run was in turns or from a dataset until now.
            self.control = ControlBlock.open(shared, create=not (shared / "control").exists())
            self.control.start(directory.identity.incarnation, self.buffer.sampled)
            self.ratio = LiveRatio(self.control, run.limiter())
            self.actor_table = map_actor_table(shared, create=not (shared / "actors").exists())
            self.publisher = _make_publisher(run, "models")
            run.models = self.publisher.slots
            self.publisher.incarnation = max(self.publisher.incarnation, self.control.acting_incarnation + 1)
            self.rank = self._make_rank(group, beginning)
            self.learner = make_learner(
                run,
                earlier,
                stack,
                publish=self.publisher.publish,
                scoring=self._make_actor_scoring(stack),
                episodes=self.control.episode_record,
                rank=self.rank,
            )
            self.control.opt_steps = self.learner.opt_steps
            self._traces = OptTraces(shared, self.learner, self.buffer, self.publisher.slots.newest)
            self.ratio.begin(self.buffer.inserted, self.buffer.sampled)
            self.learner.start()
            # Parts end in the reverse order of these lines. Local actors start last but end after ingest, which takes
            # their last rows.
            ending_local_actors = stack.enter_context(ExitStack())
            self.ingest = self._start_ingest()
            self._goes_on = not self.place.is_alone  # A rank may lose another rank in ``listen``; see ``_train``.
            stack.callback(self._end_ingest)
            self.intake = self._make_intake()
            self._metrics = self._serve_metrics()
            stack.callback(self._metrics.close)
            self.ingest.when_moved = self._write_endpoints_again
            self._write_endpoints()
            self.rank.listen(self.learner, self.ingest.address, shared)
            self._goes_on = False
            if local_actors:
                self.local_actors = self._start_local_actors(local_actors, coming_actors)
                ending_local_actors.callback(self.local_actors.stop_and_join, LEAVE_SECONDS)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start_local_actors(self, n: int, spares: Sequence[Spare] | None) -> ActorManager:
        """Start actors on this host; they read models from the trainer's slots.

        Raises:
            ConfigError: the trainer and ingest have all cores.
        """
        own = self.config.trainer.cores
        if own is not None and not self.run.cores_left:
            raise ConfigError(
                f"trainer.cores: expected to leave a core to the local actors, found {write_cores(own)}, which are all "
                "that this process may use"
            )
        trust, models = local_trust(self.config.server), self.run.dir.shared / "models"
        cores = divide_cores(self.run.cores_left, self.place.n_local)[self.place.local_rank]
        return ActorManager(self.ingest.local_address, n, self.fail, trust, models=models, cores=cores, spares=spares)

    def _open_group(self, stack: ExitStack) -> Group | None:
        if self.place.is_alone:
            return None
        return stack.enter_context(Group(self.place, self.config.trainer.rank_seconds, self.config.trainer.device))

    def _make_rank(self, group: Group | None, beginning: Beginning | None) -> Rank:
        if group is None or beginning is None:
            return Rank(self.buffer, self._show_life)
        return Together(
            group,
            beginning,
            self.buffer,
            gives_tensors=self.config.replay.resident,
            beat=self._show_life,
            control=self.control,
        )

    def _end_ingest(self) -> None:
        """End ingest: if the ranks are started again, its actors are not told to stop."""
        if self._goes_on:
            self.ingest.leave()
        else:
            self.ingest.end(self.config.server.grace_seconds)

    def _make_actor_scoring(self, stack: ExitStack) -> ActorScoring | None:
        """The scoring by an actor, if the configuration asks for it."""
        config, run = self.config, self.run
        if not config.is_scored_by_actors:
            return None
        scoring = ActorScoring(
            run.dir.shared,
            self.control,
            partial(_make_publisher(run, CANDIDATES).publish, wait=True),
            incarnation=run.dir.identity.incarnation,
            checkpoints=run.checkpoints,
            finish_seconds=config.evaluator.finish_seconds,
        )
        stack.callback(scoring.end)
        return scoring

    def _start_ingest(self) -> IngestProcess:
        config, run = self.run.config, self.run
        boot = {
            "config": self.place.limits(config).model_dump(mode="json"),
            "directory": str(run.dir.shared),
            "run_id": run.dir.identity.run_id,
            "columns": run.parts.schema.to_json(),
            "model_bytes": self.publisher.blob_bytes,
            "addresses": config.ports_to_try("server.listen"),
            "metrics_ports": config.ports_to_try("metrics.ingest_port"),
            "rank": self.place.rank,
            "n_ranks": self.place.n_ranks,
        }
        return IngestProcess(self._coming_ingest, boot, self.control, self.fail, config.server.hung_seconds)

    def _make_intake(self) -> Intake:
        return Intake(
            buffer=self.buffer,
            ratio=self.ratio,
            control=self.control,
            bell=self.ingest.trainer_bell,
            release_held=self.ingest.release_held,
            starvation_seconds=self.config.trainer.starvation_seconds,
        )

    def _serve_metrics(self) -> MetricsServer:
        collector = TrainerCollector(
            self.run, self.learner, self.publisher, self.control, ratio=self.ratio, restarts=self._count_restarts
        )
        serve = partial(MetricsServer, collector, self.config.metrics)
        return listen_at_first(self.config.ports_to_try("metrics.trainer_port"), serve)

    def _count_restarts(self) -> dict[str, int]:
        """How often each kind of child was started again."""
        actors = self.local_actors.restarts if self.local_actors is not None else 0
        return {"ingest": self.ingest.restarts, "evaluator": self.learner.scoring.restarts, "actor": actors}

    def _write_endpoints(self) -> None:
        """Write ``endpoints.json`` once all its addresses answer, since other processes wait for the file."""
        endpoints = {
            "learner": self.ingest.address,
            "trainer_metrics_port": self._metrics.port,
            "ingest_metrics_port": self.ingest.metrics_port,
        }
        tried = map(self.config.ports_to_try, FREE_PORTS)
        pairs = zip(tried, endpoints.values(), strict=True)
        taken = [str(ports[0]) for ports, found in pairs if len(ports) > 1 and found != ports[0]]
        if taken:
            log.warning("other programs have the usual ports (%s): free ones take their place", ", ".join(taken))
        log.info(
            "listening on %s, metrics on ports %s and %s; run directory %s", *endpoints.values(), self.run.dir.path
        )
        self.run.dir.write_json("endpoints.json", endpoints)

    def _write_endpoints_again(self) -> None:
        """Write ``endpoints.json`` with another port of ingest's metrics; if this fails, training goes on."""
        try:
            self._write_endpoints()
        except (OSError, CrossborderError) as error:
            log.error("endpoints.json keeps the former port of ingest's metrics: %s", error)

    def fail(self, error: CrossborderError) -> None:
        """End training because a part of the system cannot go on; from any thread."""
        log.error("%s", error)
        if self.learner.outcome is None:
            self.failure = error
            self.learner.request_stop()

    def train(self) -> AsyncResult:
        """Train until the run ends. After every kind of end, save ``final/`` and end all other processes in order.

        Raises:
            CrossborderError: a part failed, the trainer starved, or ``final/`` could not be saved.
            Exception: from the agent or the evaluator.
        """
        learner = self.learner
        try:
            with learner.training(self._announce_stop):
                self._train()
            if learner.outcome is not None and learner.outcome.is_finish:
                self._metrics.show_last()  # Prometheus has to know that the run has finished, and did not break off.
        except DivergedError:
            self.control.divergences += 1
            raise
        finally:
            self._stack.close()
        result = {**vars(self.run.make_result(learner)), "samples_total": self.rank.inserted}
        return AsyncResult(**result, actors=actor_stats(self.actor_table))

    def _train(self) -> None:
        """Train until the run ends.

        A rank that has lost another rank, or that torchrun will start again, does not tell its actors to stop.
        """
        settle = partial(self.publisher.settle, wait=True)
        try:
            self.rank.train(self.intake, self._count_step, settle, lambda: self.failure is not None)
            if self.failure is not None:
                raise self.failure
        except Exception as error:
            self._goes_on = self.place.restarts_left > 0 or isinstance(error, RankLostError)
            raise

    def _announce_stop(self) -> None:
        if not self._goes_on:
            self.ingest.announce_stop()

    def _count_step(self) -> None:
        """Tell ingest of an opt step that was taken."""
        self.control.sampled, self.control.opt_steps = self.buffer.sampled, self.learner.opt_steps
        self.ingest.release_held()
        # A life that this directory does not know of may have begun at a later time by its clock, and actors may still
        # have a model of that life. They take only greater versions.
        if self.control.acting_incarnation > self.publisher.incarnation:
            self.publisher.incarnation = self.control.acting_incarnation + 1
        self.publisher.settle()
        self._traces.note_opt()

    def _show_life(self) -> None:
        """Let ingest see that training goes on; called for each opt step, wait and step of an evaluation."""
        self.control.trainer_beats += 1

    def status(self) -> Status:
        """The present figures of the run, from any thread."""
        return self.run.make_status(
            self.learner,
            samples_per_insert=self.ratio.samples_per_insert,
            actors_online=self.control.actors_online,
            return_mean=self.control.return_mean,
            policy_lag=self.control.policy_lag,
        )


def _make_publisher(run: Run, name: str) -> ModelPublisher:
    """A publisher with new slots: nobody reads the models of an earlier life."""
    path, config = run.dir.shared / name, run.config
    run_id, incarnation = run.dir.identity.run_id, run.dir.identity.incarnation
    path.unlink(missing_ok=True)
    return ModelPublisher(path, run.parts.agent.model_info(), incarnation, config.trainer.model_precision, run_id)


def local_trust(config: ServerConfig) -> Trust:
    """The certificates and parts that actors on this host trust.

    They know the server's own certificate, and present it if the server asks for one. They may build any part that the
    configuration names, since this process builds the same parts.
    """
    if config.tls is None:
        return Trust(allow=(ANY,))
    own = {"certificate": config.tls.certificate, "key": config.tls.key} if config.tls.client_ca else {}
    return Trust(ca=config.tls.certificate, token_file=config.actor_token_file, allow=(ANY,), **own)


def train_async(
    config: RunConfig, local_actors: int = 0, *, resume: bool = False, origin: Origin | None = None
) -> AsyncResult:
    """Train with actors over gRPC and return statistics, as border's ``train_async`` does.

    Args:
        config: the run.
        local_actors: number of actor workers to run on this host; others may join at any time.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: see ``LearnerServer``.
    """
    config.check()
    with LearnerServer(config, local_actors, resume=resume, origin=origin) as server:
        return server.train()
