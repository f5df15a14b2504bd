"""The learner host: wiring, start-up and shutdown (border's ``train_async``, over real processes).

Start-up, each step only after the one before:
    1. run directory made and locked, resolved configuration written
    2. environments, agent and item schema built
    3. shared memory made: control block, replay, model slots; the first model published
    4. ingest started and listening; /metrics served; ``endpoints.json`` written
    5. local actors started
    6. training
Shutdown, whatever ended training:
    1. stop announced to the actors; last model published; recorders flushed; ``final/`` saved
    2. ingest takes what actors still have (at most ``server.grace_seconds``) and ends
    3. local actors end
    4. recorders and the picture closed; summary; the lock given back
"""

from __future__ import annotations

import logging
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from actor.manager import ActorManager
from actor.stat import ActorStat
from common.config import RunConfig, dump_config
from common.data import Schema
from common.errors import CheckpointError, CrossborderError
from learner.actor_table import map_actor_table
from learner.checkpoint import Checkpoints
from learner.curve import draw_learning_curve
from learner.evaluator import DefaultEvaluator
from learner.ingest_process import IngestProcess
from learner.intake import Intake
from learner.learner import Learner, Outcome
from learner.limiter import RatioLimiter
from learner.metrics import MetricsServer, TrainerCollector
from learner.parts import Parts, build_parts
from learner.publisher import ModelPublisher
from learner.recorder import CsvRecorder
from learner.replay.memory import ReplayMemory
from learner.replay.uniform import UniformReplay
from learner.rundir import RunDir, default_run_dir
from learner.shared import ControlBlock
from learner.stat import AsyncTrainStat, actor_stats
from learner.status import Status

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    outcome: Outcome
    best_score: float
    opt_steps: int
    samples_total: int
    trainer: AsyncTrainStat
    actors: list[ActorStat]
    run_dir: Path


class LearnerServer:
    """Everything on the learner host, from configuration to summary. Use once, as a context manager.

    Args:
        config: checked already.
        local_actors: actor workers to run on this host.

    Raises:
        CrossborderError: something could not be built, opened or listened on; what had begun is ended.
    """

    def __init__(self, config: RunConfig, local_actors: int = 0) -> None:
        self.config = config
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
        config = self.config
        self.run_dir = RunDir(config.run_dir or default_run_dir(config.name))
        stack.callback(self.run_dir.close)
        self.run_dir.write_text("config.yaml", dump_config(config))
        torch.set_num_threads(config.trainer.torch_threads)
        parts = build_parts(config)
        stack.callback(parts.env.close)
        run_id = secrets.token_hex(8)
        publisher = self._make_shared(parts)
        self._make_learner(parts, publisher, run_id, stack)
        self.learner.start()
        stack.callback(self._join_local_actors)
        self._start_ingest(parts.schema, publisher.blob_bytes, run_id, stack)
        if self._n_local_actors:
            self._local_actors = ActorManager(self.ingest.local_address, self._n_local_actors, self.fail)

    def _make_shared(self, parts: Parts) -> ModelPublisher:
        shared = self.run_dir.shared
        self.control = ControlBlock.at(shared, create=True)
        self.control.incarnation = 1
        self.actor_table = map_actor_table(shared, create=True)
        memory = ReplayMemory(shared / "replay", parts.schema, self.config.replay.capacity, create=True)
        self.buffer = UniformReplay(memory, self.config.seed)
        return ModelPublisher(shared / "models", parts.agent.model_info(), self.control.incarnation)

    def _make_learner(self, parts: Parts, publisher: ModelPublisher, run_id: str, stack: ExitStack) -> None:
        recorder = CsvRecorder(self.run_dir.path / "metrics.csv")
        stack.callback(self._draw_curve)
        stack.callback(recorder.close)
        self.learner = Learner(
            agent=parts.agent,
            buffer=self.buffer,
            evaluator=DefaultEvaluator(parts.env, self.config.evaluator),
            recorder=recorder,
            checkpoints=Checkpoints(self.run_dir.path, self.config.actor_part(), run_id),
            publish=publisher.publish,
            config=self.config.trainer,
        )

    def _start_ingest(self, schema: Schema, model_bytes: int, run_id: str, stack: ExitStack) -> None:
        config = self.config
        boot = {
            "config": config.model_dump(mode="json"),
            "directory": str(self.run_dir.shared),
            "run_id": run_id,
            "columns": schema.to_json(),
            "model_bytes": model_bytes,
            "listen": config.server.listen,
            "metrics_port": config.metrics.ingest_port,
        }
        self.ingest = IngestProcess(boot, self.control, self.fail)
        stack.callback(self.ingest.end, config.server.grace_seconds)
        stack.callback(self.ingest.announce_stop)
        limiter = RatioLimiter.of(config)
        bell, starvation = self.ingest.trainer_bell, config.trainer.starvation_seconds
        self.intake = Intake(
            buffer=self.buffer, limiter=limiter, control=self.control, bell=bell, starvation_seconds=starvation
        )
        metrics = MetricsServer(TrainerCollector(self.status), config.metrics.host, config.metrics.trainer_port)
        stack.callback(metrics.close)
        endpoints = {
            "learner": self.ingest.address,
            "trainer_metrics_port": metrics.port,
            "ingest_metrics_port": self.ingest.metrics_port,
        }
        self.run_dir.write_json("endpoints.json", endpoints)
        log.info("listening on %s; run directory %s", self.ingest.address, self.run_dir.path)

    def _join_local_actors(self) -> None:
        if self._local_actors is not None:
            self._local_actors.stop_and_join(self.config.server.grace_seconds + 5.0)

    def fail(self, error: CrossborderError) -> None:
        """End training because a part of the system cannot go on."""
        log.error("%s", error)
        if self.learner.outcome is None:
            self.failure = error
            self.learner.request_stop()

    def train(self) -> Result:
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
        seconds = learner.seconds()
        try:
            learner.finish(self.ingest.announce_stop)
        except CheckpointError as error:
            self.failure = self.failure or error
        self._stack.close()
        if self.failure is not None:
            raise self.failure
        assert learner.outcome is not None
        samples = self.buffer.inserted
        return Result(
            outcome=learner.outcome,
            best_score=learner.best_score,
            opt_steps=learner.opt_steps,
            samples_total=samples,
            trainer=AsyncTrainStat(samples / seconds, seconds, learner.opt_steps / seconds),
            actors=actor_stats(self.actor_table),
            run_dir=self.run_dir.path,
        )

    def _loop(self) -> None:
        while self.learner.outcome is None:
            if self.intake.may_sample() and self.learner.step():
                self.control.sampled = self.buffer.sampled
                self.ingest.release_held()
            else:
                self.intake.wait()
                self.learner.check_time()

    def _draw_curve(self) -> None:
        path = self.run_dir.path
        draw_learning_curve(
            path / "metrics.csv", path / "learning_curve.png", self.config.name, self.config.trainer.target_score
        )

    def status(self) -> Status:
        """One look at the run, from any thread."""
        return Status(
            name=self.config.name,
            seconds=self.learner.seconds(),
            opt_steps=self.learner.opt_steps,
            max_opts=self.config.trainer.max_opts,
            best_score=self.learner.best_score,
            target_score=self.config.trainer.target_score,
            inserted=self.buffer.inserted,
            sampled=self.buffer.sampled,
            replay_size=len(self.buffer),
            samples_per_insert=self.config.replay.samples_per_insert,
            trainer_wait_seconds=self.control.trainer_wait_seconds,
            actors_online=self.control.actors_online,
            return_mean=self.control.return_mean,
            policy_lag=self.control.policy_lag,
            record=self.learner.last_record,
        )


def train_async(config: RunConfig, local_actors: int = 0) -> Result:
    """Train with actors over gRPC; border's ``train_async``, and it returns its statistics.

    Args:
        config: the run.
        local_actors: actor workers to run on this host; others may join at any time.

    Raises:
        CrossborderError: see ``LearnerServer``.
    """
    config.check()
    with LearnerServer(config, local_actors) as server:
        return server.train()
