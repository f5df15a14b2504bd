"""Training in turns, in one process and without a network: border's synchronous ``Trainer``.

One agent acts and learns in turns. Sampler, learner and configuration are the same as in training with actors. Two runs
with the same seed give the same curve, even if one of them is killed and resumed.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np

from actor.sampling.opponents import Opponents
from actor.sampling.resumable import ResumableSampler
from actor.sampling.sampler import require_lanes
from actor.stat import ActorCounters
from common.config.run_config import RunConfig
from common.data import Model, ModelVersion, Snapshot
from common.lanes.pace import Pace
from common.lanes.safe_stop import stop_safely
from common.shared.mapped import holding_alone
from common.wire.tensor_file import read_tensors
from learner.loop.run import Opened, Result, Run, open_directory
from learner.loop.wiring import make_learner
from learner.models.model_pool import Pool
from learner.records.status import Status
from learner.replay.limiter import RatioLimiter
from learner.replay.writer import LocalSink
from learner.shared.durable import logging_write_errors
from learner.storage.origin import Origin

log = logging.getLogger(__name__)
MAX_SLACK: Final = 1 << 15
"""At most this many of the newest rows can be taken back when the run is resumed."""


class ActorInTurns:
    """The part that acts: it steps ``envs_per_actor`` environments, and counts the opt steps that are due for them.

    A resumed run restores it as a whole: rows that came after the checkpoint are taken back, and episodes go on where
    they were. If rows cannot be taken back, they stay, and new episodes begin.

    Args:
        run: opened; no other process writes to its replay.
    """

    def __init__(self, run: Run) -> None:
        config = run.config
        self.counters, self._agent = ActorCounters(), run.parts.agent
        ratio, warmup = config.replay.samples_per_insert, config.trainer.warmup_period
        limiter = RatioLimiter(ratio, warmup, error_buffer=0.0, began=run.memory.steps_began)
        self.limiter = limiter.since(ratio, run.memory.steps, 0)
        """Says when an opt step is due. It counts no steps that the replay held before this start of the run."""
        self.owed = 0
        """Opt steps that are due and not yet taken; always 0 with a replay ratio, since then ``limiter`` decides."""
        self._is_restored = False
        self._sink = LocalSink(run.memory, run.value_rules)
        self._lanes, self._env = require_lanes(run.parts), config.env
        rate = config.env.rate_hz
        pace = Pace(rate, threading.Event(), self.counters.note_tick) if rate is not None else None
        self._pool = run.pool
        if run.pool is not None:
            self._lanes.pool = Opponents(
                config, run.parts, config.seed, run.pool.weights, partial(_load_model, run.pool)
            )
        # With the seeds of its first start, a resumed run would see again the episodes that it has stored.
        self._sampler = ResumableSampler(run.parts, self.counters, config.seed + run.memory.steps, pace)

    def act(self, opt_steps: int) -> None:
        """Take one step in every environment, with the agent as it is after this many opt steps.

        Raises:
            Exception: from an environment, a step processor or the agent.
        """
        before = self.counters.env_steps
        self._sampler.version = opt_steps
        self._sampler.sample_and_push(self._agent, self._sink)
        if self.limiter.samples_per_insert is None:
            self.owed += self.counters.env_steps - before

    def episode_record(self) -> dict[str, float]:
        """Means of the newest episodes by key; games that have ended count from now on."""
        self.count_games()
        return self.counters.episode_record()

    def count_games(self) -> None:
        """Count the games against the pool that have ended."""
        if self._pool is not None:
            for (player, opponent, result), count in self.counters.take_games().items():
                self._pool.note(player, opponent, result, count)
            with logging_write_errors("the results of the newest games are missing"):
                self._pool.save()

    def stop_safely(self) -> None:
        """Make a safe stop in all environments."""
        stop_safely(self._lanes, self._env)

    def state(self) -> Snapshot:
        """The state between two turns, or between two opt steps of a turn."""
        sampler, limiter = self._sampler.state(), self.limiter
        counted = [limiter.samples_per_insert, limiter.inserted_before, limiter.sampled_before]
        values = {"replay": self._sink.mark(), "owed": self.owed, "counted": counted, "sampler": sampler.values}
        return Snapshot(values, sampler.arrays)

    def restore(self, state: Snapshot) -> None:
        """Go on from ``state``, if the replay can go back to it."""
        mark, ratio = state.values["replay"], self.limiter.samples_per_insert
        if not self._sink.roll_back(mark):
            log.warning(
                "the replay cannot go back to its first %d rows: later rows stay, new episodes begin, and the curve "
                "will differ from that of a run that was never interrupted",
                mark["end"],
            )
            return
        self.owed = state.values["owed"]
        self._sampler.restore(Snapshot(state.values["sampler"], state.arrays))
        ratio_before, inserted, sampled = state.values.get("counted", (ratio, 0, 0))
        self._is_restored = ratio_before == ratio
        self.limiter = self.limiter.since(ratio, inserted, sampled)

    def begin(self, inserted: int, sampled: int) -> None:
        """Begin this life of the run, with these counters of the replay buffer.

        If ``restore`` has restored the limiter's counts, the replay ratio goes on from them. In a new run, or with
        another ratio, the ratio counts from now on: neither acting nor learning catches up with earlier steps.
        """
        if not self._is_restored:
            self.limiter = self.limiter.since(self.limiter.samples_per_insert, inserted, sampled)


class Trainer(Opened):
    """Trains one agent, which acts and learns in turns.

    The constructor opens the run. Use the trainer once, as a context manager.

    After a step in every environment the trainer takes exactly as many opt steps as ``replay.samples_per_insert`` asks
    for; without a ratio, one opt step for each environment step, as border does by default.

    Args:
        config: checked already.
        resume: resume the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: something could not be built or opened.
    """

    def __init__(self, config: RunConfig, *, resume: bool = False, origin: Origin | None = None) -> None:
        self.config = config
        with ExitStack() as stack:
            directory, earlier = open_directory(config, stack, resume=resume, origin=origin)
            slack = min(config.replay.capacity, MAX_SLACK)
            opened = Run(
                config,
                directory,
                earlier,
                epsilon=config.exploration.epsilon(0),
                n_envs=config.envs_per_actor,
                slack=slack,
                origin=origin,
            )
            self.run = stack.enter_context(opened)
            stack.enter_context(holding_alone(directory.shared))
            self._actor = ActorInTurns(self.run)
            self.learner = make_learner(
                self.run,
                earlier,
                stack,
                actor_in_turns=self._actor,
                episodes=self._actor.episode_record,
            )
            buffer = self.run.buffer
            self._actor.begin(buffer.inserted - buffer.waiting, buffer.sampled)
            self.run.write_config()
            self._stack = stack.pop_all()

    def train(self) -> Result:
        """Train until the run ends, and save ``final/`` after every kind of end.

        Raises:
            CrossborderError: the evaluator's process failed, or ``final/`` could not be saved.
            Exception: from the environment, the agent or the evaluator.
        """
        learner = self.learner
        learner.start()
        with learner.training():
            self._learn()  # An earlier life may have ended in the middle of a turn.
            try:
                while learner.outcome is None:
                    self._actor.act(learner.opt_steps)
                    self._learn()
                    learner.tick()
            finally:
                self._actor.stop_safely()
                self._actor.count_games()
        self._stack.close()
        return self.run.make_result(learner)

    def _learn(self) -> None:
        """Take the opt steps that are due: as many as the replay ratio allows; without a ratio, all that are owed."""
        actor, learner, buffer = self._actor, self.learner, self.run.buffer
        has_ratio = self.config.replay.samples_per_insert is not None
        while learner.outcome is None and (has_ratio or actor.owed):
            if not (actor.limiter.may_sample(buffer.inserted, buffer.sampled) and learner.step()):
                actor.owed = 0  # No opt steps are owed for the warm-up.
                return
            actor.owed = max(0, actor.owed - 1)

    def status(self) -> Status:
        """The present figures of the run, from any thread."""
        return self.run.make_status(
            self.learner,
            samples_per_insert=self.config.replay.samples_per_insert,
            actors_online=1,
            return_mean=self._actor.counters.episode_record().get("train_return", 0.0),
        )


def _load_model(pool: Pool, version: ModelVersion) -> Model:
    """A model of the pool, which only this process changes."""
    return Model(version, read_tensors(np.frombuffer(pool.read(version) or b"", np.uint8).copy()))


def train_in_turns(config: RunConfig, *, resume: bool = False, origin: Origin | None = None) -> Result:
    """Train in one process without a network; with ``resume`` resume the run in ``run_dir``, if there is one."""
    config.check()
    with Trainer(config, resume=resume, origin=origin) as trainer:
        return trainer.train()
