"""Training in turns, in one process and without a network: border's synchronous ``Trainer``.

Sampler and learner alternate; both are the ones of asynchronous training, and so is the configuration. With one seed
the same curve comes out every time, also when the run is killed and resumed.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from common.config.run_config import RunConfig
from learner.loop.acting_in_turns import Acting
from learner.loop.learner import Learner
from learner.loop.run import Result, Run
from learner.records.status import Status
from learner.shared.mapped import holding_alone
from learner.storage.origin import Origin

MAX_SLACK: Final = 1 << 15
"""Items that a run can be rolled back by, at most; it keeps its state three times meanwhile."""


class Trainer:
    """``envs_per_actor`` environments and one agent that acts and learns in turns. Use once, as a context manager.

    After a step in every environment come as many opt steps as ``replay.samples_per_insert`` asks for, exactly;
    without a ratio one opt step for each ``trainer.opt_interval`` environment steps.

    Args:
        config: checked already.
        resume: go on with the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: something could not be built or opened.
    """

    def __init__(self, config: RunConfig, *, resume: bool = False, origin: Origin | None = None) -> None:
        self.config = config
        self._resume, self._origin = resume, origin
        self._stack = ExitStack()

    def __enter__(self) -> Trainer:
        config = self.config
        with self._stack as stack:
            epsilon, slack = config.exploration.epsilon(0), min(config.replay.capacity, MAX_SLACK)
            self._run = run = Run(
                config,
                stack,
                epsilon=epsilon,
                n_envs=config.envs_per_actor,
                slack=slack,
                resume=self._resume,
                origin=self._origin,
            )
            stack.enter_context(holding_alone(run.dir.shared))
            life = run.dir.identity.incarnation - 1
            self._acting = Acting(config, run.parts, run.memory, run.values, life=life)
            self.learner: Learner = run.make_learner(
                _nobody, stack, self._acting, episodes=self._acting.counters.episode_record
            )
            if not self._acting.goes_on:
                self._acting.count_from(run.buffer.inserted, run.buffer.sampled)
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
            self._learn()  # An earlier life may have ended in the middle of a turn.
            while learner.outcome is None:
                self._acting.act()
                self._learn()
                learner.tick()
        self._stack.close()
        return self._run.result(learner)

    def _learn(self) -> None:
        """The opt steps that are due: as many as the replay ratio allows, without one as many as are owed."""
        acting, learner, buffer = self._acting, self.learner, self._run.buffer
        has_ratio = self.config.replay.samples_per_insert is not None
        while learner.outcome is None and (has_ratio or acting.owed):
            if not (acting.limiter.may_sample(buffer.inserted, buffer.sampled) and learner.step()):
                acting.owed = 0  # Warm-up runs up no debt.
                return
            acting.owed = max(0, acting.owed - 1)

    def status(self) -> Status:
        """One look at the run, from any thread."""
        return Status.of(
            self.config,
            self.learner,
            samples_per_insert=self.config.replay.samples_per_insert,
            trainer_wait_seconds=0.0,
            actors_online=1,
            return_mean=self._acting.counters.return_mean(),
            policy_lag=0.0,
        )


def _nobody(_: int, *, wait: bool = False) -> None:
    """In turns there is nobody to publish to: actor and learner are one agent."""


def _nobody_to_stop() -> None:
    """In turns nobody has to be told to stop."""


def train_in_turns(config: RunConfig, *, resume: bool = False, origin: Origin | None = None) -> Result:
    """Train in one process without a network; with ``resume`` go on with the run in ``run_dir``, if there is one.

    Raises:
        CrossborderError: see ``Trainer``.
    """
    config.check()
    with Trainer(config, resume=resume, origin=origin) as trainer:
        return trainer.train()
