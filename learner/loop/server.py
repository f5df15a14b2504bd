"""The learner host: wiring, start-up and shutdown (border's ``train_async``, over real processes).

Start-up, each step only after the one before:
    1. run directory made, or found to resume, and locked; resolved configuration written
    2. environments, agent and item schema built; the evaluator's process started, if it has one
    3. shared memory made or opened: control block, replay, model slots; state restored; the first model published
    4. ingest started and listening; /metrics served; ``endpoints.json`` written
    5. local actors started
    6. training
Shutdown, whatever ended training:
    1. stop announced to the actors; last model published; recorders flushed; ``final/`` saved; last policy scored;
       state kept; the last figures shown to Prometheus, if the run has finished and Prometheus is there
    2. ingest takes what actors still have (at most ``server.grace_seconds``) and ends
    3. local actors end, then the evaluator's process
    4. recorders and the picture closed; summary; the lock given back
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass

from actor.manager import ActorManager
from actor.stat import ActorStat
from common.config.run_config import RunConfig
from common.config.server_config import ServerConfig
from common.errors import CrossborderError, DivergedError
from common.wire.trust import ANY, Trust
from learner.ingest.ingest_process import IngestProcess
from learner.loop.intake import Intake
from learner.loop.run import Result, Run
from learner.loop.summaries import actor_stats
from learner.loop.trainer_metrics import TrainerCollector
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
"""For local actors to end: they have had ingest's grace, and nobody would take more items."""


@dataclass(frozen=True)
class AsyncResult(Result):
    """What a run with actors came to."""

    actors: list[ActorStat]


class LearnerServer:
    """Everything on the learner host, from configuration to summary. Use once, as a context manager.

    Args:
        config: checked already.
        local_actors: actor workers to run on this host.
        resume: go on with the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: something could not be built, opened or listened on; what had begun is ended.
    """

    def __init__(
        self, config: RunConfig, local_actors: int = 0, *, resume: bool = False, origin: Origin | None = None
    ) -> None:
        self.config = config
        self._resume, self._origin = resume, origin
        self.failure: Exception | None = None
        self._n_local_actors = local_actors
        self._local_actors: ActorManager | None = None
        self._stack = ExitStack()

    def __enter__(self) -> LearnerServer:
        with self._stack as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        self._run = Run(self.config, stack, resume=self._resume, origin=self._origin)
        self.buffer = self._run.buffer
        self._publisher = self._make_shared()
        self.learner = self._run.make_learner(
            self._publisher.publish, stack, show_life=self._show_life, episodes=self.control.episode_record
        )
        self.control.opt_steps = self.learner.opt_steps
        self.ratio.begin(self.buffer.inserted, self.buffer.sampled)
        self.learner.start()
        stack.callback(self._join_local_actors)
        self._start_ingest(stack)
        self._serve_metrics(stack)
        if self._n_local_actors:
            trust = local_trust(self.config.server)
            self._local_actors = ActorManager(self.ingest.local_address, self._n_local_actors, self.fail, trust)

    def _make_shared(self) -> ModelPublisher:
        shared = self._run.dir.shared  # A run in turns or from a dataset has made none of these files.
        self.control = ControlBlock.open(shared, create=not (shared / "control").exists())
        self.control.start(self._run.dir.identity.incarnation, self.buffer.sampled)
        self.ratio = LiveRatio(self.control, RatioLimiter.of(self.config, self._run.memory.began))
        self.actor_table = map_actor_table(shared, create=not (shared / "actors").exists())
        (shared / "models").unlink(missing_ok=True)  # Nobody reads those of an earlier life.
        tensors, precision = self._run.parts.agent.model_info(), self.config.trainer.model_precision
        return ModelPublisher(shared / "models", tensors, self.control.incarnation, precision)

    def _start_ingest(self, stack: ExitStack) -> None:
        config = self.config
        boot = {
            "config": config.model_dump(mode="json"),
            "directory": str(self._run.dir.shared),
            "run_id": self._run.dir.identity.run_id,
            "columns": self._run.parts.schema.to_json(),
            "model_bytes": self._publisher.blob_bytes,
            "listen": config.server.listen,
            "metrics_port": config.metrics.ingest_port,
        }
        self.ingest = IngestProcess(boot, self.control, self.fail, config.server.hung_seconds)
        stack.callback(self.ingest.end, config.server.grace_seconds)
        stack.callback(self.ingest.announce_stop)
        bell, starvation = self.ingest.trainer_bell, config.trainer.starvation_seconds
        self.intake = Intake(
            buffer=self.buffer, ratio=self.ratio, control=self.control, bell=bell, starvation_seconds=starvation
        )

    def _serve_metrics(self, stack: ExitStack) -> None:
        config = self.config.metrics
        collector = TrainerCollector(
            self._run, self.learner, self._publisher, self.control, ratio=self.ratio, restarts=self._restarts
        )
        self._metrics = metrics = MetricsServer(collector, config, config.trainer_port)
        stack.callback(metrics.close)
        endpoints = {
            "learner": self.ingest.address,
            "trainer_metrics_port": metrics.port,
            "ingest_metrics_port": self.ingest.metrics_port,
        }
        log.info("listening on %s; run directory %s", self.ingest.address, self._run.dir.path)
        self._run.dir.write_json("endpoints.json", endpoints)  # Last: whoever waits for the file finds all there is.

    def _restarts(self) -> dict[str, int]:
        """How often each kind of child was started again."""
        actors = self._local_actors.restarts if self._local_actors is not None else 0
        return {"ingest": self.ingest.restarts, "evaluator": self.learner.scoring.restarts, "actor": actors}

    def _join_local_actors(self) -> None:
        if self._local_actors is not None:
            self._local_actors.stop_and_join(LEAVE_SECONDS)

    def fail(self, error: CrossborderError) -> None:
        """End training because a part of the system cannot go on."""
        log.error("%s", error)
        if self.learner.outcome is None:
            self.failure = error
            self.learner.request_stop()

    def train(self) -> AsyncResult:
        """Train until something ends it; whatever it is, ``final/`` is saved and everybody else ends in order.

        Raises:
            CrossborderError: a part failed, the trainer starved, or ``final/`` could not be saved.
            Exception: what the agent or the evaluator raised.
        """
        learner = self.learner
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001 - raised again below, after an orderly end
            self.failure = error
            learner.request_stop()
        try:
            learner.finish(self.ingest.announce_stop)
        except CrossborderError as error:
            self.failure = self.failure or error
        self.control.divergences += isinstance(self.failure, DivergedError)
        if self.failure is None and learner.outcome is not None and learner.outcome.is_finish:
            self._metrics.show_last()  # Prometheus has to know that the run has finished, and did not break off.
        self._stack.close()
        if self.failure is not None:
            raise self.failure
        result = self._run.result(learner)
        return AsyncResult(**vars(result), actors=actor_stats(self.actor_table))

    def _loop(self) -> None:
        while self.learner.outcome is None:
            self._show_life()
            if self.intake.may_sample() and self.learner.step():
                self.control.sampled, self.control.opt_steps = self.buffer.sampled, self.learner.opt_steps
                self.ingest.release_held()
                self._publisher.settle()
            else:
                self._publisher.settle(wait=True)  # It takes a moment, waiting for items may take seconds.
                self.intake.wait()
            self.learner.tick()

    def _show_life(self) -> None:
        """Let ingest see that training goes on; called for each opt step, wait and step of an evaluation."""
        self.control.trainer_beats += 1

    def status(self) -> Status:
        """One look at the run, from any thread."""
        return Status.of(
            self.config,
            self.learner,
            samples_per_insert=self.ratio.samples_per_insert,
            trainer_wait_seconds=self.control.trainer_wait_seconds,
            actors_online=self.control.actors_online,
            return_mean=self.control.return_mean,
            policy_lag=self.control.policy_lag,
        )


def local_trust(config: ServerConfig) -> Trust:
    """What actors on this host need: they know the server's certificate itself, and show it where one is asked for.

    They may build whatever the configuration names, since this process builds the same.
    """
    if config.tls is None:
        return Trust(allow=(ANY,))
    own = {"certificate": config.tls.certificate, "key": config.tls.key} if config.tls.client_ca else {}
    return Trust(ca=config.tls.certificate, token_file=config.actor_token_file, allow=(ANY,), **own)


def train_async(
    config: RunConfig, local_actors: int = 0, *, resume: bool = False, origin: Origin | None = None
) -> AsyncResult:
    """Train with actors over gRPC; border's ``train_async``, and it returns its statistics.

    Args:
        config: the run.
        local_actors: actor workers to run on this host; others may join at any time.
        resume: go on with the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: see ``LearnerServer``.
    """
    config.check()
    with LearnerServer(config, local_actors, resume=resume, origin=origin) as server:
        return server.train()
