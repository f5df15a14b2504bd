"""What all ways to train have in common: the run directory, people's parts, the replay, the learner loop."""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from actor.guard import Busy
from common.config.run_config import RunConfig, dump_config, load_config
from common.errors import ConfigError
from common.interfaces import Recorder, ReplayBuffer
from learner.datasets.loading import load_dataset
from learner.datasets.opening import Dataset, open_dataset
from learner.evaluation.evaluator import build_eval_env, build_evaluator
from learner.evaluation.evaluator_process import EvaluatorProcess
from learner.evaluation.scoring import AbandonableEnv, InlineScoring, Scoring
from learner.loop.acting_in_turns import Acting
from learner.loop.learner import Learner, Outcome, Publish
from learner.loop.learner_parts import build_learner_parts
from learner.loop.precision import computing_in
from learner.loop.resident import ResidentReplay
from learner.loop.summaries import AsyncTrainStat
from learner.loop.window import RecordWindow
from learner.records.csv_recorder import CsvRecorder
from learner.records.curve import plot_learning_curve
from learner.replay.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.quarantine import Quarantine
from learner.replay.recovery import make_whole
from learner.replay.screening import report_suspects, screen
from learner.replay.shared_buffer import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.replay.value_rules import ValueRules
from learner.shared.actor_table import actor_of, map_actor_table, upgrade_actor_table
from learner.shared.durable import logging_write_errors
from learner.storage.checkpoint import Checkpoints
from learner.storage.checkpointer import WINDOW, Checkpointer, Resumable
from learner.storage.moment import Moment
from learner.storage.origin import Origin
from learner.storage.rundir import RunDir, default_run_dir
from learner.storage.training_state import StateFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    outcome: Outcome
    best_score: float
    opt_steps: int
    samples_total: int
    seconds: float
    run_dir: Path

    @property
    def trainer(self) -> AsyncTrainStat:
        """The trainer's summary."""
        return AsyncTrainStat(self.samples_total / self.seconds, self.seconds, self.opt_steps / self.seconds)


class Run:
    """An opened run. Everything it opens is closed by ``stack``.

    Args:
        config: checked already.
        stack: closes what was opened, last first.
        epsilon: exploration of the learner's own agent; 0 where only actors act.
        n_envs: environments it acts in itself; where only actors act, one to build the agent for.
        slack: items that a new replay can be rolled back by.
        resume: go on with the run in ``run_dir``, if there is one.
        origin: where a new run begins from; a run that goes on has begun already.

    Raises:
        CrossborderError: the directory or a part cannot be made, or what is there does not fit the configuration.
    """

    def __init__(
        self,
        config: RunConfig,
        stack: ExitStack,
        *,
        epsilon: float = 0.0,
        n_envs: int = 1,
        slack: int = 0,
        resume: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self.config = config
        path, record = config.run_dir or default_run_dir(config.name), origin.record() if origin else None
        self.dir = RunDir(path, resume=resume, origin=record)
        stack.callback(self.dir.close)
        if self.dir.is_resumed:
            require_same_agent(self.dir.path / "config.yaml", config)
            upgrade_actor_table(self.dir.shared)
        torch.set_num_threads(config.trainer.torch_threads)
        self.parts = build_learner_parts(config, epsilon=epsilon, n_envs=n_envs)
        stack.callback(self.parts.close)
        self._eval_env = build_eval_env(config.env, self.parts.env)
        stack.callback(self._eval_env.close)
        guard = self.dir.require_in_place
        self.checkpoints = Checkpoints(
            self.dir.path, config.actor_part(), self.dir.identity.run_id, config.evaluator, guard=guard
        )
        self._states = StateFiles(
            self.dir.path / "checkpoints",
            {**asdict(self.dir.identity), "config_sha256": hashlib.sha256(dump_config(config).encode()).hexdigest()},
            config.trainer.keep_checkpoints,
            self.checkpoints.counts,
            guard,
        )
        with self.dir.writing():
            self.memory = self._open_memory(slack)
        self.values = ValueRules.of(self.parts.schema, config.server)
        close = logging_write_errors("after a power cut the newest items may be missing")(self.memory.close)
        stack.callback(close)
        self.quarantine = Quarantine(self.dir.shared, "trainer")
        if self.dir.is_resumed:
            screen(self.memory, self.values, self._actor_of, self.quarantine)
        self.buffer = self._make_buffer()
        if origin is not None and not self.dir.is_resumed:
            self._begin_from(origin)

    def _open_memory(self, slack: int) -> ReplayMemory:
        """The run's replay; an empty one for a new run, and for a resumed one whose replay is missing."""
        directory, draft = self.dir.shared / "replay", self.dir.shared / ".replay.part"
        opened = partial(
            ReplayMemory,
            schema=self.parts.schema,
            capacity=self.config.replay.capacity,
            frame_capacity=self.config.replay.frame_capacity,
        )
        if directory.exists():
            memory = opened(directory, create=False, checked=False)
            make_whole(memory, self._states.watermark)
            return memory
        began = self._items_lost() if self.dir.is_resumed else 0
        shutil.rmtree(draft, ignore_errors=True)
        memory = opened(draft, create=True, slack=slack, began=began)
        memory.directory = draft.rename(directory)  # A kill leaves the replay whole or not there at all.
        return memory

    def _items_lost(self) -> int:
        """Tell of the replay that is missing; how many items were ever stored in it."""
        found = self._states.newest()
        assert found is not None, "RunDir has seen one"
        moment = Moment(**found[1]["learner"]["moment"])
        stored, kept = moment.samples_total, min(moment.samples_total, self.config.replay.capacity)
        log.warning(
            "%s: the replay is missing (shared/replay): training goes on from opt step %d with an EMPTY replay and a "
            "new warm-up; at that checkpoint it held up to %d items, of %d ever stored",
            *(self.dir.path, moment.opt_steps, kept, stored),
        )
        return stored

    def _begin_from(self, origin: Origin) -> None:
        log.info("a new run from %s", origin)
        origin.restore(self.parts.agent, self.config)
        if origin.has_replay:
            with open_dataset(str(origin.run)) as dataset:
                self.load(dataset)

    def load(self, dataset: Dataset, *, whole: bool = False, console: Console | None = None) -> None:
        """Copy recorded items into the replay, before ``make_learner``; see ``learner.datasets.loading``."""
        batch = self.config.push.n_buffer
        load_dataset(dataset, self.parts, self.memory, self.values, batch, whole=whole, console=console)

    def _actor_of(self, incarnation: int) -> tuple[int, str] | None:
        """Who had this incarnation, if the table of actors still knows; a run in turns has no such table."""
        if not (self.dir.shared / "actors").exists():
            return None
        return actor_of(map_actor_table(self.dir.shared, create=False, writable=False), incarnation)

    def _make_buffer(self) -> SharedReplay:
        prioritized = self.config.replay.prioritized
        if prioritized is None:
            return UniformReplay(self.memory, self.config.seed)
        return PrioritizedReplay(self.memory, prioritized, self.config.seed, self.config.trainer.max_opts)

    def _batches(self) -> ReplayBuffer:
        """The buffer as the agent sees it."""
        if not self.config.replay.resident:
            return self.buffer
        return ResidentReplay(self.buffer, self.memory, torch.device(self.config.trainer.device))

    def make_learner(
        self,
        publish: Publish,
        stack: ExitStack,
        acting: Acting | None = None,
        show_life: Callable[[], None] = lambda: None,
        episodes: Callable[[], dict[str, float]] | None = None,
    ) -> Learner:
        """The learner loop of this run, with its recorders, evaluator and checkpoints.

        Args:
            publish: makes the agent's present policy the newest model.
            stack: closes what is opened here.
            acting: the acting half of synchronous training, which checkpoints keep too.
            show_life: called at each step of an evaluation that training waits for.
            episodes: means of the newest training episodes by key, for each record.
        """
        trainer, window = self.config.trainer, RecordWindow(self.buffer)
        checkpointer = self._make_checkpointer(window, acting)
        moment, best_score = self._go_on(checkpointer)
        self.dir.write_text("config.yaml", dump_config(self.config))
        stack.callback(logging_write_errors("the run ends without its learning curve")(self._draw_curve))
        learner = Learner(
            agent=self.parts.agent,
            buffer=self._batches(),
            scoring=self._make_scoring(stack, show_life),
            recorders=self._make_recorders(stack, moment.opt_steps),
            checkpoints=self.checkpoints,
            publish=publish,
            config=trainer,
            checkpointer=checkpointer,
            window=window,
            computing=computing_in(trainer.precision, trainer.device),
            explain=lambda: report_suspects(self.memory, self.buffer.last_drawn, self._actor_of, self.quarantine),
            episodes=episodes,
        )
        learner.resume(moment, best_score)
        if not self.dir.is_resumed:
            checkpointer.begin(moment)
        self.dir.begin()
        return learner

    def _make_checkpointer(self, window: RecordWindow, acting: Acting | None) -> Checkpointer:
        parts: dict[str, Resumable] = {"buffer": self.buffer, WINDOW: window}
        items = None
        if acting is not None:
            parts["acting"] = acting
            items = self.memory.slack // 3 or None  # Three of them, the one that is being written included, fit.
        trainer = self.config.trainer
        return Checkpointer(
            self._states,
            self.parts.agent,
            parts,
            trainer.device,
            seconds=trainer.checkpoint_seconds,
            items=items,
            replay=self.memory,
        )

    def _make_recorders(self, stack: ExitStack, opt_steps: int) -> list[Recorder]:
        """``metrics.csv``, whose records after this opt step are forgotten, and those that the configuration names."""
        with self.dir.writing():
            recorders: list[Recorder] = [CsvRecorder(self.dir.path / "metrics.csv", opt_steps)]
        last = logging_write_errors("the last records are missing")
        stack.callback(last(recorders[0].close))
        for config in self.config.recorders:
            recorders.append(config.build(run_dir=self.dir.path))
            stack.callback(last(recorders[-1].close))
        return recorders

    def _go_on(self, checkpointer: Checkpointer) -> tuple[Moment, float]:
        """The moment to begin at and the best score before it; what an earlier life kept is restored."""
        if not self.dir.is_resumed:
            return Moment(0, self.memory.committed, 0.0), -math.inf
        moment, best_score = checkpointer.restore()
        inserted = self.memory.committed
        # Items that came after the checkpoint count as drawn, or the trainer would run and actors wait to catch up.
        limiter = RatioLimiter.of(self.config, self.memory.began)
        # There are fewer items than then if a power cut has taken some.
        self.buffer.skip(max(0, limiter.draws_between(moment.samples_total, inserted)))
        log.info(
            "resumed at opt step %d with %d items of %d ever stored, start %d",
            *(moment.opt_steps, len(self.memory), inserted, self.dir.identity.incarnation),
        )
        return moment, max(best_score, self.checkpoints.best_score())

    def _make_scoring(self, stack: ExitStack, show_life: Callable[[], None]) -> Scoring:
        if self.config.evaluator.process == "child":
            process = EvaluatorProcess(self.config, self.checkpoints)
            stack.callback(process.end)
            return process
        abandoned, busy = threading.Event(), Busy()
        env = AbandonableEnv(self._eval_env, abandoned, busy, show_life)
        evaluator = build_evaluator(env, self.config.evaluator)
        return InlineScoring(evaluator, self.checkpoints, abandoned, busy, self.config.env.timeout_seconds)

    def _draw_curve(self) -> None:
        path, target = self.dir.path, self.config.trainer.target_score
        plot_learning_curve(path / "metrics.csv", path / "learning_curve.png", self.config.name, target)

    def result(self, learner: Learner) -> Result:
        """The outcome of a learner that has finished."""
        assert learner.outcome is not None
        return Result(
            outcome=learner.outcome,
            best_score=learner.best_score,
            opt_steps=learner.opt_steps,
            samples_total=self.buffer.inserted,
            seconds=learner.seconds(),
            run_dir=self.dir.path,
        )


def require_same_agent(path: Path, config: RunConfig) -> None:
    """See that a run goes on with the agent it began with; that its tensors and items fit is seen where they are read.

    Raises:
        ConfigError: it would not, or the file of the run's configuration cannot be read.
    """
    before = load_config(path).agent.target
    if config.agent.target != before:
        raise ConfigError(f"agent.target: expected {before}, with which the run began, found {config.agent.target}")
