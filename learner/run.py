"""What all ways to train have in common: the run directory, people's parts, the replay, the learner loop."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from common.config import RunConfig, dump_config
from common.interfaces import Recorder, ReplayBuffer
from learner.checkpoint import Checkpoints
from learner.curve import draw_learning_curve
from learner.evaluator import build_evaluator
from learner.evaluator_process import EvaluatorProcess
from learner.learner import Learner, Outcome
from learner.parts import build_eval_env, build_learner_parts
from learner.precision import computing_in
from learner.recorder import CsvRecorder
from learner.replay.memory import ReplayMemory
from learner.replay.prioritized import PrioritizedReplay
from learner.replay.uniform import UniformReplay
from learner.rundir import RunDir, default_run_dir
from learner.scoring import AbandonableEnv, InlineScoring, Scoring
from learner.stat import AsyncTrainStat


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

    Raises:
        CrossborderError: the directory or a part cannot be made.
    """

    def __init__(self, config: RunConfig, stack: ExitStack, *, epsilon: float = 0.0, n_envs: int = 1) -> None:
        self.config = config
        self.id = secrets.token_hex(8)
        self.dir = RunDir(config.run_dir or default_run_dir(config.name))
        stack.callback(self.dir.close)
        self.dir.write_text("config.yaml", dump_config(config))
        torch.set_num_threads(config.trainer.torch_threads)
        self.parts = build_learner_parts(config, epsilon=epsilon, n_envs=n_envs)
        stack.callback(self.parts.close)
        self._eval_env = build_eval_env(config.env, self.parts.env)
        stack.callback(self._eval_env.close)
        self.memory = ReplayMemory(
            self.dir.shared / "replay",
            self.parts.schema,
            config.replay.capacity,
            create=True,
            frame_capacity=config.replay.frame_capacity,
        )
        self.buffer = self._make_buffer()
        self.checkpoints = Checkpoints(self.dir.path, config.actor_part(), self.id)

    def _make_buffer(self) -> ReplayBuffer:
        prioritized = self.config.replay.prioritized
        if prioritized is None:
            return UniformReplay(self.memory, self.config.seed)
        return PrioritizedReplay(self.memory, prioritized, self.config.seed)

    def make_learner(self, publish: Callable[[int], None], stack: ExitStack) -> Learner:
        """The learner loop of this run, with its recorders, evaluator and checkpoints."""
        path = self.dir.path
        stack.callback(self._draw_curve)
        recorders: list[Recorder] = [CsvRecorder(path / "metrics.csv")]
        stack.callback(recorders[0].close)
        for config in self.config.recorders:
            recorders.append(config.build(run_dir=path))
            stack.callback(recorders[-1].close)
        return Learner(
            agent=self.parts.agent,
            buffer=self.buffer,
            scoring=self._make_scoring(stack),
            recorders=recorders,
            checkpoints=self.checkpoints,
            publish=publish,
            config=self.config.trainer,
            computing=computing_in(self.config.trainer.precision, self.config.trainer.device),
        )

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

    def result(self, learner: Learner, seconds: float) -> Result:
        """The outcome of a learner that has finished after so many seconds."""
        assert learner.outcome is not None
        return Result(
            outcome=learner.outcome,
            best_score=learner.best_score,
            opt_steps=learner.opt_steps,
            samples_total=self.buffer.inserted,
            seconds=seconds,
            run_dir=self.dir.path,
        )
