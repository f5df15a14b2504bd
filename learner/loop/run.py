"""An opened run: its directory, the user's parts and its replay. All three ways to train begin by opening a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

import numpy as np
import torch
from rich.console import Console

from actor.stat import ActorStat
from common.agents.products import choose_products
from common.agents.torch_device import making_float32, require_device
from common.config.run_config import RunConfig, dump_config
from common.cores import bound_to
from common.data import Array
from common.errors import RunDirectoryError
from common.process.child import keep_buffers
from common.shared.mapped import holding_alone
from common.shared.slots import ModelSlots
from learner.datasets.loading import load_dataset, open_source
from learner.datasets.opening import Dataset, open_dataset
from learner.loop.learner import Learner, Outcome
from learner.loop.learner_parts import build_learner_parts
from learner.loop.replay_opening import build_buffer, open_memory
from learner.loop.trial import try_opt
from learner.models.model_pool import Pool
from learner.ranks.beginning import Beginning, warn_of_idle_shards
from learner.ranks.group import Group
from learner.ranks.place import Place
from learner.records.status import Status
from learner.replay.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory
from learner.replay.quarantine import Quarantine
from learner.replay.screening import screen
from learner.replay.value_rules import ValueRules
from learner.shared.actor_table import ActorState, actor_of, map_actor_table
from learner.shared.durable import logging_write_errors
from learner.storage.checkpoint import Checkpoints, Saves
from learner.storage.origin import Origin, act_by_policy
from learner.storage.resume import ResumePoint
from learner.storage.rundir import RunDir, default_run_dir
from learner.storage.training_state import StateFiles
from learner.views.staleness import any_version

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AsyncTrainStat:
    """The summary of training, for all three ways to train; the time counts from the first published model."""

    samples_per_sec: float | None
    """None: training takes no samples."""
    duration: float
    opt_per_sec: float

    def fmt(self) -> str:
        names, row = "opt_steps/sec, duration", f"{self.opt_per_sec:.1f}, {self.duration:.2f}"
        if self.samples_per_sec is not None:
            names, row = f"samples/sec, {names}", f"{self.samples_per_sec:.1f}, {row}"
        return f"{names}\n{row}\n"


def actor_stats(table: Array) -> list[ActorStat]:
    """Every actor process the run has known, by actor id."""
    known = table[table["state"] != ActorState.UNUSED]
    rows = known[np.argsort(known["actor_id"], kind="stable")]
    return [ActorStat(int(r["actor_id"]), int(r["env_steps"]), float(r["seconds"])) for r in rows]


def actor_stats_fmt(stats: Sequence[ActorStat]) -> str:
    lines = ["actor_id, samples, samples/sec, duration"]
    for stat in stats:
        rate = stat.env_steps / stat.duration if stat.duration else 0.0
        lines.append(f"{stat.actor_id}, {stat.env_steps}, {rate:.1f}, {stat.duration:.2f}")
    return "\n".join(lines) + "\n"


FORMER_INGEST_SECONDS = 30.0
"""The ingest process of a trainer that was killed gets this long to end. It takes a moment, unless it is frozen."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    outcome: Outcome
    best_score: float
    opt_steps: int
    samples_total: int
    seconds: float
    run_dir: Path

    @property
    def trainer(self) -> AsyncTrainStat:
        """The summary of training, in border's format."""
        return AsyncTrainStat(self.samples_total / self.seconds, self.seconds, self.opt_steps / self.seconds)


def open_directory(
    config: RunConfig, stack: ExitStack, *, resume: bool = False, origin: Origin | None = None
) -> tuple[RunDir, ResumePoint | None]:
    """Lock a run's directory, and read the state that earlier lives of the run left there.

    The ingest process of a trainer that was killed may still be storing rows: this waits until it has ended.

    Args:
        config: of the run, checked already.
        stack: releases the lock of the directory when the stack is closed.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Returns:
        The directory, and the point at which the run is resumed; None for a new run.

    Raises:
        RunDirectoryError: see ``RunDir``; or that ingest process has not ended in time.
        CrossborderError: the run cannot be resumed, or not with this configuration.
    """
    path = (config.run_dir or default_run_dir(config.name)).absolute()  # An environment may change the directory.
    directory = RunDir(path, resume=resume, origin=origin.record() if origin else None)
    stack.callback(directory.close)
    with holding_alone(directory.shared, FORMER_INGEST_SECONDS):
        pass  # Now no process writes to the replay any more.
    if not directory.identity.is_resumed:
        return directory, None
    earlier = ResumePoint.read(path, directory.identity.run_id)
    earlier.require_same_agent(config)
    return directory, earlier


def open_rank(
    config: RunConfig, stack: ExitStack, group: Group | None, *, resume: bool = False, origin: Origin | None = None
) -> tuple[RunDir, ResumePoint | None, Beginning | None]:
    """``open_directory`` for a rank: rank 0 opens the run's directory first, and tells the other ranks which run it is.

    Args:
        config: of this rank.
        stack: releases the lock of the directory when the stack is closed.
        group: of all ranks; None: this process is alone.
        resume: resume the run, if there is one.
        origin: where a new run begins from.

    Raises:
        RankLostError: another rank has ended.
        CrossborderError: see ``open_directory``.
    """
    if group is None:
        directory, earlier = open_directory(config, stack, resume=resume, origin=origin)
        warn_of_idle_shards(directory.path, 1)
        return directory, earlier, None
    if group.place.leads:
        directory, earlier = open_directory(config, stack, resume=resume, origin=origin)
        beginning = Beginning.of(directory, earlier.moment if earlier is not None else None)
        beginning.tell(group)
        warn_of_idle_shards(directory.path, group.place.n_ranks)
    else:
        beginning = Beginning.hear(group)
        config = beginning.place_directory(config, group)
        directory, earlier = open_directory(config, stack, resume=resume)
        beginning.adopt(directory, group.place.rank)
    return directory, earlier, beginning


class Opened:
    """A context manager that closes at its end what its constructor has opened."""

    _stack: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


@contextmanager
def _computing(n_threads: int, device: torch.device) -> Iterator[None]:
    """Set the number of torch's threads, and in this context what agents expect.

    That is torch's own default dtype, and that calls which name no GPU mean the one of the run.
    """
    torch.set_num_threads(n_threads)
    chosen = device if device.type == "cuda" and device.index is not None else -1  # -1: no change.
    with making_float32(), torch.cuda.device(chosen):
        yield


class Run(Opened):
    """An opened run. Use it as a context manager, which closes everything but the directory.

    Args:
        config: checked already. A run that began from a saved agent takes no random actions at its start.
        directory: of the run, locked; the caller closes it.
        earlier: the state that earlier lives of the run left; None for a new run.
        epsilon: exploration of the learner's own agent; 0 if only actors act.
        n_envs: number of environments in which the learner acts itself; 0 if only actors act.
        slack: number of newest rows that a new replay can be rolled back by.
        origin: where a new run begins from; other ranks than 0 get the agent of rank 0.
        place: of this process among the ranks.

    Raises:
        CrossborderError: a part or a file cannot be made, or the files in the directory do not fit the configuration.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDir,
        earlier: ResumePoint | None,
        *,
        epsilon: float = 0.0,
        n_envs: int = 0,
        slack: int = 0,
        origin: Origin | None = None,
        place: Place | None = None,
    ) -> None:
        self.place = place or Place()
        config = act_by_policy(config) if directory.identity.origin is not None else config
        self.config, self.dir = config, directory
        self._config_text = dump_config(config)
        self.config_sha256 = sha256(self._config_text.encode()).hexdigest()
        with ExitStack() as stack:
            # 1. The processor, before the parts start threads.
            self.cores_left = stack.enter_context(bound_to(config.trainer.cores, "trainer.cores"))
            """The cores that trainer.cores leaves to local actors; empty without trainer.cores."""
            stack.enter_context(_computing(config.trainer.torch_threads, require_device(config.trainer.device)))
            self.products = choose_products(config.trainer.products)
            keep_buffers()  # An opt step of Nature's CNN takes 7 % less time: its tensors need no new pages.
            # 2. The parts. One opt step on made-up rows finds most of their mistakes before anything is written.
            self.parts = build_learner_parts(config, epsilon=epsilon, n_envs=n_envs)
            stack.callback(self.parts.close)
            # A temporary directory may be too small, and is never cleared after a learner that was killed here.
            try:
                try_opt(config, self.parts, directory.shared / ".trial.part", quick=True)
            except RunDirectoryError as error:
                log.warning("%s: this start tries no opt step on made-up rows", error)
            log.info("products: %s", self.products)
            # 3. The files of policies and checkpoints, and the replay with the rows of earlier lives.
            saves = Saves(directory.require_in_place)
            self.checkpoints = Checkpoints(directory.path, config.actor_part(), directory.identity.run_id, saves)
            about = {**asdict(directory.identity), "config_sha256": self.config_sha256}
            self.states = StateFiles(directory.path / "checkpoints", about, saves)
            self.memory = open_memory(directory, self.parts.schema, config.replay, slack, earlier)
            stack.callback(logging_write_errors("after a power cut the newest rows may be missing")(self.memory.close))
            self.pool = Pool.of(config, directory.path)
            """The earlier models that play as opponents; None if nobody plays against them."""
            self.value_rules = ValueRules.of(self.parts.schema, config.server)
            self.quarantine = Quarantine(directory.shared, "trainer")
            if earlier is not None:
                screen(self.memory, self.value_rules, self.find_actor, self.quarantine)
            # 4. What the agent draws from, and where a new run begins.
            datasets = self._open_datasets(is_resumed=earlier is not None)
            self.models: ModelSlots | None = None
            """The models for the actors; None if there are no actors, or before the first model."""
            self.buffer = build_buffer(self.memory, config, datasets, self._newest_model)
            if origin is not None and earlier is None and self.place.leads:
                self._begin_from(origin)
            self._stack = stack.pop_all()

    def _begin_from(self, origin: Origin) -> None:
        """Give a new run the agent of another run and, if they are asked for, its rows."""
        log.info("a new run from %s", origin)
        origin.restore(self.parts, self.config)
        if origin.has_replay:
            with open_dataset(str(origin.run)) as dataset:
                self.load(dataset)

    def write_config(self) -> None:
        """Write ``config.yaml``, which the next resume reads: in a resumed run as the last step of its start."""
        self.dir.write_text("config.yaml", self._config_text)

    def load(self, dataset: Dataset, *, whole: bool = False, console: Console | None = None) -> None:
        """Copy recorded rows into the replay, before the learner is made; see ``learner.datasets.loading``."""
        load_dataset(dataset, self.parts, self.memory, self.value_rules, whole=whole, console=console)

    def _open_datasets(self, *, is_resumed: bool) -> dict[str, ReplayMemory]:
        """The datasets of the replay's sources, by name; those of a resumed run are screened as its own rows are."""
        found: dict[str, ReplayMemory] = {}
        for name, source in self.config.replay.sources.items():
            if source.dataset is None:
                continue
            found[name] = open_source(name, source.dataset, self.dir.shared, self.parts, self.value_rules)
            if is_resumed:
                screen(found[name], self.value_rules, self.find_actor, self.quarantine, f"the source {name}")
        return found

    def _newest_model(self) -> int:
        """The opt steps of the newest model for the actors."""
        return self.models.newest().opt_steps if self.models is not None else any_version()

    def limiter(self) -> RatioLimiter:
        """The replay ratio of the configuration, as this rank keeps it."""
        return RatioLimiter.of(self.place.with_its_shares(self.config), self.memory.steps_began)

    def find_actor(self, incarnation: int) -> tuple[int, str] | None:
        """The id and host of the actor with this incarnation; None if the table of actors does not know it.

        A run in turns has no such table.
        """
        if not (self.dir.shared / "actors").exists():
            return None
        return actor_of(map_actor_table(self.dir.shared, create=False, writable=False), incarnation)

    def make_result(self, learner: Learner) -> Result:
        """The outcome of a learner that has finished."""
        assert learner.outcome is not None
        return Result(
            outcome=learner.outcome,
            best_score=learner.best_score,
            opt_steps=learner.opt_steps,
            samples_total=learner.inserted,
            seconds=learner.seconds(),
            run_dir=self.dir.path,
        )

    def make_status(
        self,
        learner: Learner,
        *,
        samples_per_insert: float | None = None,
        actors_online: int = 0,
        return_mean: float = 0.0,
        policy_lag: float = 0.0,
    ) -> Status:
        """The present figures of the run, from any thread; the defaults are those of a run without acting."""
        return Status(
            name=self.config.name,
            seconds=learner.seconds(),
            opt_steps=learner.opt_steps,
            max_opts=self.config.trainer.max_opts,
            best_score=learner.best_score,
            target_score=self.config.trainer.target_score,
            inserted=self.buffer.inserted,
            sampled=self.buffer.sampled,
            replay_size=len(self.buffer),
            samples_per_insert=samples_per_insert,
            actors_online=actors_online,
            return_mean=return_mean,
            policy_lag=policy_lag,
            record=learner.records.newest,
        )
