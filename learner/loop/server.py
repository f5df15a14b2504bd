"""The learner host: wiring, start-up and shutdown (border's ``train_async``, over real processes).

Start-up (``LearnerServer.__init__``), each step after the one before:
    1. the run directory is made, or found to resume, and locked; the process that mirrors it is started
    2. the agent is built, the schema of the rows found, and the replay made or opened
    3. the other memory that ingest shares is made or opened, such as the control block and the model slots
    4. the state of the run is restored, the resolved configuration written, the evaluator's process started; the mirror
       is claimed, and the run is mirrored from now on
    5. the first model is published; ingest is started and listens; /metrics is served; ``endpoints.json`` is written
    6. local actors are started
Training (``LearnerServer.train``), then shutdown after every kind of end:
    1. ``Learner.finish``: stop is announced to the actors, the last model published, recorders flushed, ``final/``
       saved, the last policy scored, the last checkpoint taken
    2. Prometheus scrapes the last figures, if the run has finished and Prometheus watches it
    3. ingest takes the rows that actors still have (at most ``server.grace_seconds``) and ends; if another life of the
       run follows, it takes those of local actors only, which end before it
    4. local actors end, recorders are closed, the evaluator's process ends, the learning curve is drawn
    5. the replay is synced and closed, environments are closed, the mirror gets what is left, the lock is given back
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from actor.child_main import ActorWork
from actor.manager import ACTOR, ActorManager
from actor.stat import ActorStat
from common.config.run_config import RunConfig
from common.config.server_config import ServerConfig
from common.cores import divide_cores, write_cores
from common.errors import ConfigError, CrossborderError, DivergedError, TakenOverError
from common.wire.endpoints import listen_at_first
from common.wire.trust import ANY, Trust
from learner.evaluation.scoring import CANDIDATES, ActorScoring
from learner.ingest.ingest_process import ComingIngest, IngestProcess
from learner.loop.intake import Intake
from learner.loop.learner import Learner
from learner.loop.learner_parts import LOADED_ELSEWHERE, LiveTensors, message_bytes
from learner.loop.loop import train
from learner.loop.opt_step import do_nothing
from learner.loop.opt_traces import OptTraces
from learner.loop.ports import Ports
from learner.loop.run import Opened, Result, Run, actor_stats, open_rank
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
from learner.storage.mirror_process import MirrorProcess
from learner.storage.origin import Origin
from learner.storage.resume import ResumePoint
from learner.storage.rundir import RunDir

log = logging.getLogger(__name__)
DAY = 86_400.0
"""Seconds that ranks wait for each other if ``server.hung_seconds`` is null."""
LEAVE_SECONDS = 5.0
"""Local actors get this long to end; beside much other work they took 2 s. Actors give themselves ``FINISH_SECONDS``,
but one that needs more than this waits in vain: ingest has ended, or the trainer draws no more steps."""


@dataclass(frozen=True)
class AsyncResult(Result):
    """The outcome of a run with actors."""

    actors: list[ActorStat]


class LearnerServer(Opened):
    """Everything on the learner host, from configuration to summary.

    The constructor starts it, and from then on actors can join. Use it once, as a context manager.

    Args:
        config: checked already.
        local_actors: number of actor workers to run on this host.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.
        coming_ingest: a process that forks ingest and the local actors, which the caller closes; None starts such a
            process.
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
        place: Place | None = None,
        when_met: Callable[[], None] = do_nothing,
    ) -> None:
        self.config, self.place = config, place or Place()
        self.local_actors: ActorManager | None = None
        with ExitStack() as stack:
            # 1. The run directory; several ranks meet before.
            self._coming_ingest = coming_ingest or stack.enter_context(ComingIngest([ACTOR] if local_actors else []))
            group = self._open_group(stack, when_met)
            directory, earlier, beginning = open_rank(config, stack, group, resume=resume, origin=origin)
            self._ports = Ports(config, directory)
            self._mirror = self._open_mirror(directory, stack)
            # 2. The agent, the schema of its rows and the replay.
            self.run = run = stack.enter_context(Run(config, directory, earlier, origin=origin, place=self.place))
            self.buffer = run.buffer
            self._require_core_left(local_actors)
            # 3. The memory that ingest shares.
            self._share_memory()
            self.ranks = self._make_ranks(group, beginning)
            # 4. The learner, in the state of a resumed run.
            self.learner = self._make_learner(earlier, stack)
            self._live.require(now=True, otherwise=LOADED_ELSEWHERE)
            self._traces = OptTraces(
                directory.shared, self.learner, lambda: self.buffer.last_drawn, self.publisher.slots.newest
            )
            self.mirrored = self._mirror.begin(self.learner.fail) if self._mirror is not None else None
            self.control.opt_steps = self.learner.opt_steps
            self.ratio.begin(self.buffer.inserted - self.buffer.waiting, self.buffer.sampled)
            # 5. The first model, ingest, /metrics and endpoints.json. Parts end in the reverse order of these lines.
            self.learner.start()
            ending_local_actors = stack.enter_context(ExitStack())  # After ingest, which takes their last rows.
            self.ingest = self._start_ingest()
            stack.push(self._end_ingest)
            self.intake = self._make_intake()
            self._metrics = self._serve_metrics(stack)
            self.ingest.when_moved = self._write_endpoints_again
            self._write_endpoints()
            if self.ranks is not None:
                self.ranks.listen(self.learner, self.ingest.address, directory.shared)
            # 6. Local actors.
            self.local_actors = self._start_local_actors(local_actors, ending_local_actors)
            run.write_config()
            self._stack = stack.pop_all()

    def _start_local_actors(self, n: int, stack: ExitStack) -> ActorManager | None:
        """Start n actors on this host, which read models from the trainer's slots; ``stack`` ends them."""
        if not n:
            return None
        trust, work = local_trust(self.config.server), ActorWork(models=self.run.dir.shared / "models")
        cores = divide_cores(self.run.cores_left, self.place.n_local)[self.place.local_rank]
        address, fail = self.ingest.local_address, self.learner.fail
        server = self._coming_ingest.server
        manager = ActorManager(address, n, fail, trust, work=work, cores=cores, server=server)
        stack.callback(manager.stop_and_join, LEAVE_SECONDS)
        return manager

    def _open_group(self, stack: ExitStack, when_met: Callable[[], None]) -> Group | None:
        if self.place.is_alone:
            return None
        group = Group(self.place, self.config.server.hung_seconds or DAY, self.config.trainer.device)
        stack.enter_context(group)
        when_met()
        return group

    def _require_core_left(self, local_actors: int) -> None:
        own = self.config.trainer.cores
        if local_actors and own is not None and not self.run.cores_left:
            raise ConfigError(
                f"trainer.cores: expected to leave a core to the local actors, found {write_cores(own)}, which are all "
                "that this process may use"
            )

    def _open_mirror(self, directory: RunDir, stack: ExitStack) -> MirrorProcess | None:
        """The process that mirrors the run; it outlives the parts that write to the run's directory."""
        if self.config.storage.mirror is None:
            return None
        if not self.place.is_alone:
            raise ConfigError("storage.mirror: expected a learner without other ranks; set storage.mirror: null")
        return stack.enter_context(MirrorProcess(directory, self.config.storage))

    def _share_memory(self) -> None:
        """Make or open the control block, the table of actors and the model slots, beside the replay."""
        run, shared = self.run, self.run.dir.shared
        # The files of a resumed run are there already, unless the run was in turns or from a dataset until now.
        self.control = ControlBlock.open(shared, create=not (shared / "control").exists())
        self.control.start(run.dir.identity.incarnation, self.buffer.sampled)
        self.ratio = LiveRatio(self.control, run.limiter())
        self.actor_table = map_actor_table(shared, create=not (shared / "actors").exists())
        self._live = LiveTensors(run.parts.agent, run.config.agent.target)
        self.publisher = _make_publisher(run, "models", lambda: self.control.acting_incarnation)
        run.models = self.publisher.slots

    def _publish(self, opt_steps: int, /, *, wait: bool = False) -> None:
        self._live.require(now=wait)
        self.publisher.publish(opt_steps, wait=wait)

    def _make_ranks(self, group: Group | None, beginning: Beginning | None) -> Together | None:
        if group is None or beginning is None:
            return None
        return Together(group, beginning, self.buffer, gives_tensors=self.config.replay.resident, control=self.control)

    def _make_learner(self, earlier: ResumePoint | None, stack: ExitStack) -> Learner:
        return make_learner(
            self.run,
            earlier,
            stack,
            publish=self._publish,
            scoring=self._make_actor_scoring(stack),
            episodes=self.control.episode_record,
            show_life=self.control.show_life if self.ranks is None else self.ranks.show_life,
            ranks=self.ranks,
        )

    def _end_ingest(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """End ingest: if another life of the run follows, its actors are not told to stop.

        Args:
            error: has ended the start of this learner; None if it has started.
        """
        if error is not None:
            self.learner.life.break_off(error)
        if not self.learner.life.is_followed:
            self.ingest.end(self.config.server.grace_seconds)
            return
        # Local actors do not wait for the next life, so this ingest takes their last rows; unless another learner has
        # the run: rows that ingest went on to acknowledge would be lost.
        if self.local_actors is not None and not isinstance(self.learner.life.failure, TakenOverError):
            self.local_actors.stop_and_join(LEAVE_SECONDS)
        self.ingest.leave()

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
        )
        stack.callback(scoring.end)
        return scoring

    def _start_ingest(self) -> IngestProcess:
        config, run = self.run.config, self.run
        boot = {
            "config": self.place.with_its_shares(config).model_dump(mode="json"),
            "directory": str(run.dir.shared),
            "run_id": run.dir.identity.run_id,
            "columns": run.parts.schema.to_json(),
            "message_bytes": message_bytes(config, run.parts.schema),
            "model_bytes": self.publisher.blob_bytes,
            "addresses": self._ports.addresses,
            "metrics_ports": self._ports.ingest_metrics,
            "rank": self.place.rank,
            "n_ranks": self.place.n_ranks,
        }
        return IngestProcess(
            self._coming_ingest,
            boot,
            self.control,
            self.learner.fail,
            hung_seconds=config.server.hung_seconds,
            require_directory=run.dir.require_for_child,
        )

    def _make_intake(self) -> Intake:
        return Intake(
            buffer=self.buffer,
            ratio=self.ratio,
            control=self.control,
            bell=self.ingest.trainer_bell,
            release_held=self.ingest.release_held,
            starvation_seconds=self.config.trainer.starvation_seconds,
        )

    def _serve_metrics(self, stack: ExitStack) -> MetricsServer:
        collector = TrainerCollector(
            self.run,
            self.learner,
            self.publisher,
            self.control,
            ratio=self.ratio,
            restarts=self._count_restarts,
            mirror=self.mirrored,
        )
        serve = partial(MetricsServer, collector, self.config.metrics.host, tls=self.config.metrics_tls)
        metrics = listen_at_first(self._ports.trainer_metrics, serve)
        stack.callback(metrics.close)
        return metrics

    def _count_restarts(self) -> dict[str, int]:
        """How often each kind of child was started again."""
        actors = self.local_actors.restarts if self.local_actors is not None else 0
        mirror = self._mirror.restarts if self._mirror is not None else 0
        evaluator = self.learner.scoring.restarts
        return {"ingest": self.ingest.restarts, "evaluator": evaluator, "actor": actors, "mirror": mirror}

    def _write_endpoints(self) -> None:
        """Say where the learner listens once all its addresses answer, since other processes wait for the file."""
        self._ports.write(self.ingest.address, self._metrics.port, self.ingest.metrics_port)

    def _write_endpoints_again(self) -> None:
        """Write ``endpoints.json`` with another port of ingest's metrics; if this fails, training goes on."""
        try:
            self._write_endpoints()
        except (OSError, CrossborderError) as error:
            log.error("endpoints.json keeps the former port of ingest's metrics: %s", error)

    def request_stop(self) -> None:
        """End training, as ``Learner.request_stop`` does; from any thread. A local actor that ends stays away."""
        if self.local_actors is not None:
            self.local_actors.stop_restarting()
        self.learner.request_stop()

    def train(self) -> AsyncResult:
        """Train until the run ends. After every kind of end, save ``final/`` and end all other processes in order.

        Raises:
            CrossborderError: a part failed, the trainer starved, or ``final/`` could not be saved.
            Exception: from the agent or the evaluator.
        """
        learner = self.learner

        def announce_stop() -> None:
            self.ingest.announce_stop(is_finish=learner.outcome is not None and learner.outcome.is_finish)

        try:
            with learner.training(announce_stop):
                if self.ranks is None:
                    train(learner, self.intake, self.publisher, self._traces)
                else:
                    self.ranks.train(learner, self.intake, self.publisher, self._traces)
            if learner.outcome is not None and learner.outcome.is_finish:
                self._metrics.show_last()  # Prometheus has to know that the run has finished, and did not break off.
        except DivergedError:
            self.control.divergences += 1
            raise
        finally:
            self._stack.close()
        result = self.run.make_result(learner)
        return AsyncResult(**vars(result), actors=actor_stats(self.actor_table))

    def status(self) -> Status:
        """The present figures of the run, from any thread."""
        return self.run.make_status(
            self.learner,
            samples_per_insert=self.ratio.samples_per_insert,
            actors_online=self.control.actors_online,
            return_mean=self.control.return_mean,
            policy_lag=self.control.policy_lag,
        )


def _make_publisher(run: Run, name: str, acting: Callable[[], int] | None = None) -> ModelPublisher:
    """A publisher with new slots: nobody reads the models of an earlier life."""
    path, config = run.dir.shared / name, run.config
    run_id, incarnation = run.dir.identity.run_id, run.dir.identity.incarnation
    path.unlink(missing_ok=True)
    tensors, precision = run.parts.agent.model_info(), config.trainer.model_precision
    return ModelPublisher(path, tensors, incarnation, precision, run_id, acting=acting)


def local_trust(config: ServerConfig) -> Trust:
    """The certificates and parts that actors on this host trust.

    They know the server's own certificate, and present it if the server asks for one. They may build any part that the
    configuration names, since this process builds the same parts.
    """
    if config.tls is None:
        return Trust(allow=(ANY,))
    own = {"certificate": config.tls.certificate, "key": config.tls.key} if config.tls.client_ca else {}
    return Trust(ca=config.tls.certificate, token_file=config.actor_token_file, allow=(ANY,), **own)


def train_async(config: RunConfig, local_actors: int = 0, *, resume: bool = False) -> AsyncResult:
    """Train with actors over gRPC and return statistics, as border's ``train_async`` does; see ``LearnerServer``."""
    config.check()
    with LearnerServer(config, local_actors, resume=resume) as server:
        return server.train()
