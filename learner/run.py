"""What all ways to train have in common: the run directory, people's parts, the replay, the learner loop."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from common.config import RunConfig, dump_config, load_config
from common.errors import ConfigError
from common.interfaces import Recorder, ReplayBuffer
from learner.acting import Acting
from learner.checkpoint import Checkpoints
from learner.checkpointer import Checkpointer, Resumable
from learner.curve import draw_learning_curve
from learner.durable import tolerated
from learner.evaluator import build_evaluator
from learner.evaluator_process import EvaluatorProcess
from learner.learner import Learner, Outcome, Publish
from learner.limiter import RatioLimiter
from learner.parts import build_eval_env, build_learner_parts
from learner.precision import computing_in
from learner.recorder import CsvRecorder
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.shared import SharedReplay
from learner.replay.uniform import UniformReplay
from learner.resident import ResidentReplay
from learner.rundir import RunDir, default_run_dir
from learner.scoring import AbandonableEnv, InlineScoring, Moment, Scoring
from learner.stat import AsyncTrainStat
from learner.training_state import StateFiles
from learner.window import RecordWindow

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
    ) -> None:
        self.config = config
        self.dir = RunDir(config.run_dir or default_run_dir(config.name), resume=resume)
        stack.callback(self.dir.close)
        if self.dir.is_resumed:
            require_same_agent(self.dir.path / "config.yaml", config)
        else:
            self.dir.write_text("config.yaml", dump_config(config))
        torch.set_num_threads(config.trainer.torch_threads)
        self.parts = build_learner_parts(config, epsilon=epsilon, n_envs=n_envs)
        stack.callback(self.parts.close)
        self._eval_env = build_eval_env(config.env, self.parts.env)
        stack.callback(self._eval_env.close)
        with self.dir.writing():
            self.memory = ReplayMemory(
                self.dir.shared / "replay",
                self.parts.schema,
                config.replay.capacity,
                create=not self.dir.is_resumed,
                frame_capacity=config.replay.frame_capacity,
                slack=slack,
            )
        self.buffer = self._make_buffer()
        self.checkpoints = Checkpoints(self.dir.path, config.actor_part(), self.dir.identity.run_id)

    def _make_buffer(self) -> SharedReplay:
        prioritized = self.config.replay.prioritized
        if prioritized is None:
            return UniformReplay(self.memory, self.config.seed)
        return PrioritizedReplay(self.memory, prioritized, self.config.seed)

    def _batches(self) -> ReplayBuffer:
        """The buffer as the agent sees it."""
        if not self.config.replay.resident:
            return self.buffer
        return ResidentReplay(self.buffer, self.memory, torch.device(self.config.trainer.device))

    def make_learner(self, publish: Publish, stack: ExitStack, acting: Acting | None = None) -> Learner:
        """The learner loop of this run, with its recorders, evaluator and checkpoints; those are of ``acting`` too."""
        path, trainer = self.dir.path, self.config.trainer
        window = RecordWindow(self.buffer)
        parts: dict[str, Resumable] = {"buffer": self.buffer, "window": window}
        items = None
        if acting is not None:
            parts["acting"] = acting
            items = self.memory.slack // 3 or None  # Three of them, the one that is being written included, fit.
        checkpointer = Checkpointer(
            self._state_files(),
            self.parts.agent,
            parts,
            trainer.device,
            seconds=trainer.checkpoint_seconds,
            items=items,
        )
        moment, best_score = self._go_on(checkpointer, acting)
        stack.callback(tolerated("the run ends without its learning curve")(self._draw_curve))
        with self.dir.writing():
            recorders: list[Recorder] = [CsvRecorder(path / "metrics.csv", moment.opt_steps)]
        last = tolerated("the last records are missing")
        stack.callback(last(recorders[0].close))
        for config in self.config.recorders:
            recorders.append(config.build(run_dir=path))
            stack.callback(last(recorders[-1].close))
        learner = Learner(
            agent=self.parts.agent,
            buffer=self._batches(),
            scoring=self._make_scoring(stack),
            recorders=recorders,
            checkpoints=self.checkpoints,
            publish=publish,
            config=trainer,
            checkpointer=checkpointer,
            window=window,
            computing=computing_in(trainer.precision, trainer.device),
        )
        learner.resume(moment, best_score)
        self.dir.begin()
        return learner

    def _state_files(self) -> StateFiles:
        run = {
            **asdict(self.dir.identity),
            "config_sha256": hashlib.sha256(dump_config(self.config).encode()).hexdigest(),
        }
        return StateFiles(
            self.dir.path / "checkpoints", run, self.config.trainer.keep_checkpoints, self.checkpoints.counts
        )

    def _go_on(self, checkpointer: Checkpointer, acting: Acting | None) -> tuple[Moment, float]:
        """The moment to begin at and the best score before it; what an earlier life kept is restored."""
        beginning = Moment(0, 0, 0.0), -math.inf
        if not self.dir.is_resumed:
            return beginning
        restored = checkpointer.restore()
        if restored is None and acting is not None:
            acting.begin_again()
        moment, best_score = restored or beginning
        inserted = self.memory.committed
        # Items that came after the checkpoint count as drawn, or the trainer would run and actors wait to catch up.
        self.buffer.skip(RatioLimiter.of(self.config).draws_between(moment.samples_total, inserted))
        self.dir.write_text("config.yaml", dump_config(self.config))
        log.info(
            "resumed at opt step %d with %d items, start %d", moment.opt_steps, inserted, self.dir.identity.incarnation
        )
        return moment, max(best_score, self.checkpoints.best_score())

    def _make_scoring(self, stack: ExitStack) -> Scoring:
        if self.config.evaluator.process == "child":
            process = EvaluatorProcess(self.config, self.checkpoints)
            stack.callback(process.end)
            return process
        abandoned = threading.Event()
        evaluator = build_evaluator(AbandonableEnv(self._eval_env, abandoned), self.config.evaluator)
        return InlineScoring(evaluator, self.checkpoints, abandoned)

    def _draw_curve(self) -> None:
        path, target = self.dir.path, self.config.trainer.target_score
        draw_learning_curve(path / "metrics.csv", path / "learning_curve.png", self.config.name, target)

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
