"""Training in turns, in one process and without a network: border's synchronous ``Trainer``.

Sampler and learner alternate; both are the ones of asynchronous training, and so is the configuration. With one seed
the same curve comes out every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

from actor.priority import PrioritizedItems
from actor.sampler import Sampler
from actor.stat import ActorCounters
from common.clocks import Every
from common.config import RunConfig
from common.data import Items
from common.interfaces import ItemSink
from learner.learner import Learner
from learner.limiter import RatioLimiter
from learner.replay.memory import ReplayMemory, ReplayWriter
from learner.run import Result, Run
from learner.status import Status

_OWN: Final = 1
"""The incarnation of items that a process makes for itself."""


class LocalSink:
    """An ``ItemSink`` that writes into the replay of its own process."""

    def __init__(self, memory: ReplayMemory) -> None:
        self._schema = memory.schema
        self._writer = ReplayWriter(memory)
        self._seq = self._writer.last_seq(_OWN)

    def push(self, items: Items) -> None:
        self._seq += 1
        self._writer.append(items, self._schema.count(items), incarnation=_OWN, seq=self._seq)


class Trainer:
    """``envs_per_actor`` environments and one agent that acts and learns in turns. Use once, as a context manager.

    After a step in every environment come as many opt steps as ``replay.samples_per_insert`` asks for, exactly;
    without a ratio one opt step for each ``trainer.opt_interval`` environment steps.

    Args:
        config: checked already.
        resume: go on with the run in ``run_dir``, if there is one; its environments begin new episodes.

    Raises:
        CrossborderError: something could not be built or opened.
    """

    def __init__(self, config: RunConfig, *, resume: bool = False) -> None:
        self.config = config
        self._resume = resume
        self._stack = ExitStack()
        self._counters = ActorCounters()
        self._opt = Every(config.trainer.opt_interval)
        self._limiter = RatioLimiter(config.replay.samples_per_insert, config.trainer.warmup_period, error_buffer=0.0)

    def __enter__(self) -> Trainer:
        with self._stack as stack:
            epsilon, n_envs = self.config.exploration.epsilon(0), self.config.envs_per_actor
            self._run = Run(self.config, stack, epsilon=epsilon, n_envs=n_envs, resume=self._resume)
            self.learner: Learner = self._run.make_learner(_nobody, stack)
            lives_before = self._run.dir.identity.incarnation - 1  # Each has played episodes of its own.
            seed = self.config.seed + lives_before * n_envs
            self._sampler = Sampler(self._run.parts.lanes, self._counters, seed)
            sink = LocalSink(self._run.memory)
            first_priorities = self.config.push.initial_priorities
            self._sink: ItemSink = PrioritizedItems(sink, self._run.parts.agent) if first_priorities else sink
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def train(self) -> Result:
        """Train until something ends it; ``final/`` is saved whatever it is.

        Raises:
            CrossborderError: the evaluator's process failed, or ``final/`` could not be saved.
            Exception: what the environment, the agent or the evaluator raised.
        """
        learner = self.learner
        with learner.training(_nobody_to_stop):
            while learner.outcome is None:
                env_steps = self._counters.env_steps
                self._sampler.sample_and_push(learner.agent, self._sink)
                self._learn(env_steps)
                learner.tick()
        self._stack.close()
        return self._run.result(learner)

    def _learn(self, since: int) -> None:
        """The opt steps that are due after the environment steps that followed number ``since``."""
        learner, buffer = self.learner, self._run.buffer
        due: Iterable[int] = itertools.count()  # The limiter says when it is enough.
        if self.config.replay.samples_per_insert is None:
            due = range(self._opt.count(since, self._counters.env_steps))
        for _ in due:
            may_go_on = learner.outcome is None and self._limiter.may_sample(buffer.inserted, buffer.sampled)
            if not (may_go_on and learner.step()):
                return

    def status(self) -> Status:
        """One look at the run, from any thread."""
        return Status.of(
            self.config,
            self.learner,
            samples_per_insert=self.config.replay.samples_per_insert,
            trainer_wait_seconds=0.0,
            actors_online=1,
            return_mean=self._counters.return_mean(),
            policy_lag=0.0,
        )


def _nobody(_: int) -> None:
    """In turns there is nobody to publish to: actor and learner are one agent."""


def _nobody_to_stop() -> None:
    """In turns nobody has to be told to stop."""


def train_in_turns(config: RunConfig, *, resume: bool = False) -> Result:
    """Train in one process without a network; with ``resume`` go on with the run in ``run_dir``, if there is one.

    Raises:
        CrossborderError: see ``Trainer``.
    """
    config.check()
    with Trainer(config, resume=resume) as trainer:
        return trainer.train()
