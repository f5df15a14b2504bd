"""The learner host: wiring, start-up and shutdown (border's ``train_async``, over real processes).

Start-up (``LearnerServer.__init__``), each step after the one before:
    1. the run directory is made, or found to resume, and locked
    2. the agent is built and the schema of the rows found
    3. shared memory is made or opened: replay, control block, model slots
    4. the state of the run is restored, the resolved configuration written, the evaluator's process started
    5. the first model is published; ingest is started and listens; /metrics is served; ``endpoints.json`` is written
    6. local actors are started
Training (``LearnerServer.train``), then shutdown, whatever ended training:
    1. ``Learner.finish``: stop is announced to the actors, the last model published, recorders flushed, ``final/``
       saved, the last policy scored, the last checkpoint taken
    2. Prometheus scrapes the last figures, if the run has finished and Prometheus is there
    3. ingest takes the rows that actors still have (at most ``server.grace_seconds``) and ends
    4. local actors end, recorders are closed, the evaluator's process ends, the learning curve is drawn
    5. the replay is synced and closed, environments are closed, the lock is given back
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Self

from actor.manager import ActorManager
from actor.stat import ActorStat
from common.config.run_config import RunConfig
from common.config.server_config import ServerConfig
from common.errors import CrossborderError, DivergedError
from common.wire.trust import ANY, Trust
from learner.evaluation.actor_scoring import CANDIDATES, ActorScoring
from learner.ingest.ingest_process import IngestProcess
from learner.loop.intake import Intake
from learner.loop.run import Result, Run, open_directory
from learner.loop.summaries import actor_stats
from learner.loop.trainer_metrics import TrainerCollector
from learner.loop.wiring import make_learner
from learner.models.publisher import ModelPublisher
from learner.records.exposition import MetricsServer
from learner.records.status import Status
from learner.replay.limiter import RatioLimiter
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

    It is opened when constructed, and from then on actors can join. Use it once, as a context manager.

    Args:
        config: checked already.
        local_actors: number of actor workers to run on this host.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: something could not be built, opened or listened on; all processes and files that were already
            open are closed.
    """

    def __init__(
        self, config: RunConfig, local_actors: int = 0, *, resume: bool = False, origin: Origin | None = None
    ) -> None:
        self.config = config
        self.failure: CrossborderError | None = None
        """Why a part of the system cannot go on; None while all parts can."""
        self.local_actors: ActorManager | None = None
        with ExitStack() as stack:
            directory, earlier = open_directory(config, stack, resume=resume, origin=origin)
            self.run = run = stack.enter_context(Run(config, directory, earlier, origin=origin))
            self.buffer, shared = run.buffer, directory.shared
            # The files of a resumed run are there already, unless the run was in turns or from a dataset until now.
            self.control = ControlBlock.open(shared, create=not (shared / "control").exists())
            self.control.start(directory.identity.incarnation, self.buffer.sampled)
            self.ratio = LiveRatio(self.control, RatioLimiter.of(config, run.memory.steps_began))
            self.actor_table = map_actor_table(shared, create=not (shared / "actors").exists())
            self.publisher = _make_publisher(run, "models")
            self.learner = make_learner(
                run,
                earlier,
                stack,
                publish=self.publisher.publish,
                show_life=self._show_life,
                scoring=self._make_actor_scoring(stack),
                episodes=self.control.episode_record,
            )
            self.control.opt_steps = self.learner.opt_steps
            self.ratio.begin(self.buffer.inserted, self.buffer.sampled)
            self.learner.start()
            # Parts end in the reverse order of these lines. Local actors start last but end after ingest, which takes
            # their last rows.
            ending_local_actors = stack.enter_context(ExitStack())
            self.ingest = self._start_ingest()
            stack.callback(self.ingest.end, config.server.grace_seconds)
            self.intake = self._make_intake()
            self._metrics = self._serve_metrics()
            stack.callback(self._metrics.close)
            self._write_endpoints()
            if local_actors:
                address, trust = self.ingest.local_address, local_trust(config.server)
                self.local_actors = ActorManager(address, local_actors, self.fail, trust)
                ending_local_actors.callback(self.local_actors.stop_and_join, LEAVE_SECONDS)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _make_actor_scoring(self, stack: ExitStack) -> ActorScoring | None:
        """The scoring by an actor, if the configuration asks for it."""
        config, run = self.config, self.run
        if config.evaluator.process != "actor" or not config.trainer.eval_interval:
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
        config, run = self.config, self.run
        boot = {
            "config": config.model_dump(mode="json"),
            "directory": str(run.dir.shared),
            "run_id": run.dir.identity.run_id,
            "columns": run.parts.schema.to_json(),
            "model_bytes": self.publisher.blob_bytes,
            "listen": config.server.listen,
            "metrics_port": config.metrics.ingest_port,
        }
        return IngestProcess(boot, self.control, self.fail, config.server.hung_seconds)

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
        return MetricsServer(collector, self.config.metrics, self.config.metrics.trainer_port)

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
        log.info("listening on %s; run directory %s", self.ingest.address, self.run.dir.path)
        self.run.dir.write_json("endpoints.json", endpoints)

    def fail(self, error: CrossborderError) -> None:
        """End training because a part of the system cannot go on; from any thread."""
        log.error("%s", error)
        if self.learner.outcome is None:
            self.failure = error
            self.learner.request_stop()

    def train(self) -> AsyncResult:
        """Train until the run ends; whatever ended the run, save ``final/`` and end all other processes in order.

        Raises:
            CrossborderError: a part failed, the trainer starved, or ``final/`` could not be saved.
            Exception: from the agent or the evaluator.
        """
        learner = self.learner
        try:
            with learner.training(self.ingest.announce_stop):
                self._loop()
                if self.failure is not None:
                    raise self.failure
            if learner.outcome is not None and learner.outcome.is_finish:
                self._metrics.show_last()  # Prometheus has to know that the run has finished, and did not break off.
        except DivergedError:
            self.control.divergences += 1
            raise
        finally:
            self._stack.close()
        return AsyncResult(**vars(self.run.make_result(learner)), actors=actor_stats(self.actor_table))

    def _loop(self) -> None:
        while self.learner.outcome is None:
            self._show_life()
            if self.intake.may_sample() and self.learner.step():
                self.control.sampled, self.control.opt_steps = self.buffer.sampled, self.learner.opt_steps
                self.ingest.release_held()
                self.publisher.settle()
            else:
                self.publisher.settle(wait=True)  # This takes a moment; waiting for rows may take seconds.
                self.intake.wait()
            self.learner.tick()

    def _show_life(self) -> None:
        """Let ingest see that training goes on; called for each opt step, wait and step of an evaluation."""
        self.control.trainer_beats += 1

    def status(self) -> Status:
        """The present figures of the run, from any thread."""
        return self.run.make_status(
            self.learner,
            samples_per_insert=self.ratio.samples_per_insert,
            trainer_wait_seconds=self.control.trainer_wait_seconds,
            actors_online=self.control.actors_online,
            return_mean=self.control.return_mean,
            policy_lag=self.control.policy_lag,
        )


def _make_publisher(run: Run, name: str) -> ModelPublisher:
    """A publisher with new slots: nobody reads the models of an earlier life."""
    path, incarnation = run.dir.shared / name, run.dir.identity.incarnation
    path.unlink(missing_ok=True)
    return ModelPublisher(path, run.parts.agent.model_info(), incarnation, run.config.trainer.model_precision)


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
