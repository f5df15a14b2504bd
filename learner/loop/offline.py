"""Training from a dataset, in one process and without acting: border's ``train_offline``.

Learner loop, evaluator, records and checkpoints are the ones of training with actors, and so is the configuration.
With one seed the same curve comes out every time.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from common.config.run_config import RunConfig
from common.errors import ConfigError, DatasetError
from learner.datasets.opening import open_dataset
from learner.loop.learner import Learner
from learner.loop.run import Result, Run
from learner.records.status import Status
from learner.replay.memory import ReplayMemory
from learner.storage.origin import Origin
from learner.storage.rundir import work_in


class OfflineTrainer:
    """An agent that learns from what others did. Use once, as a context manager; entering it loads the dataset.

    The items are copied into the run's own replay, whose capacity grows to hold them all; ``trainer.warmup_period``,
    ``trainer.opt_interval``, ``replay.samples_per_insert`` and ``push.initial_priorities`` mean nothing here. A resumed
    run, of whatever kind, learns from the items that it has.

    Args:
        config: checked already.
        dataset: ``minari:ID``, a Minari dataset's directory, or an earlier run's directory; None takes the replay of
            ``origin``, or that of the run that is resumed.
        console: shows the loading on it if it is a terminal; None logs plain lines.
        resume: go on with the run in ``run_dir``, if there is one; it has its items already, unless they were lost.
        origin: where a new run begins from.

    Raises:
        ConfigError: a new run has no dataset, or two.
        DatasetError: the dataset cannot be read, is empty, or holds values that a column refuses.
        SchemaMismatchError: its items are not those of this run's environment and step processor.
        CrossborderError: something could not be built or opened.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: str | None,
        console: Console | None = None,
        *,
        resume: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self.config = config
        self._source, self._console, self._origin = dataset, console, origin
        self._resume = resume
        self._stack = ExitStack()

    def __enter__(self) -> OfflineTrainer:
        with self._stack as stack:
            kept = self._kept_replay()
            if kept is None:
                self._fill(stack)
            else:
                self._go_on(stack, kept)
            self.learner: Learner = self._run.make_learner(_nobody, stack)
            self._stack = stack.pop_all()
        return self

    def _kept_replay(self) -> Path | None:
        """Where the items of the run that is to go on are; None if they have to be loaded."""
        run_dir = self.config.run_dir
        if not self._resume or run_dir is None or not work_in(run_dir):
            return None
        kept = run_dir / "shared" / "replay"
        return kept if kept.exists() else None

    def _go_on(self, stack: ExitStack, kept: Path) -> None:
        """Open the run that is resumed, with the room that its replay has."""
        self.config = _with_capacity(self.config, ReplayMemory.open_saved(kept).capacity)
        self._source = str(self.config.run_dir)
        self._run = Run(self.config, stack, resume=True)

    def _fill(self, stack: ExitStack) -> None:
        """Open a run, new or without its replay, and copy the dataset into its replay."""
        self._source = _the_source(self._source, self._origin)
        with open_dataset(self._source) as dataset:
            self.config = _with_room(self.config, len(dataset))
            self._run = Run(self.config, stack, resume=self._resume, origin=self._origin)
            if self._origin is None or not self._origin.has_replay:  # Otherwise the run has copied it.
                self._run.load(dataset, whole=True, console=self._console)

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def train(self) -> Result:
        """Train until something ends it; ``final/`` is saved whatever it is.

        Raises:
            DatasetError: the agent needs more items than there are.
            CrossborderError: the evaluator's process failed, or ``final/`` could not be saved.
            Exception: what the agent or the evaluator raised.
        """
        learner = self.learner
        with learner.training(_nobody_to_stop):
            while learner.outcome is None:
                if not learner.step():
                    raise DatasetError(f"dataset {self._source}: its {len(learner.buffer)} items are too few to begin")
                learner.tick()
        self._stack.close()
        return self._run.result(learner)

    def status(self) -> Status:
        """One look at the run, from any thread."""
        return Status.of(
            self.config,
            self.learner,
            samples_per_insert=None,
            trainer_wait_seconds=0.0,
            actors_online=0,
            return_mean=0.0,
            policy_lag=0.0,
        )


def _nobody(_: int, *, wait: bool = False) -> None:
    """There is nobody to publish to."""


def _nobody_to_stop() -> None:
    """Nobody has to be told to stop."""


def _the_source(dataset: str | None, origin: Origin | None) -> str:
    """Where a new run's items come from."""
    replay = str(origin.run) if origin is not None and origin.has_replay else None
    if dataset is None and replay is None:
        raise ConfigError("--dataset: expected a dataset to fill the replay from, found none")
    if dataset is not None and replay is not None:
        raise ConfigError(f"--dataset: expected one source of items, found {dataset} and the replay of {replay}")
    return dataset or replay or ""


def _with_capacity(config: RunConfig, capacity: int) -> RunConfig:
    """The configuration with a replay of ``capacity`` items."""
    return config.model_copy(update={"replay": config.replay.model_copy(update={"capacity": capacity})})


def _with_room(config: RunConfig, steps: int) -> RunConfig:
    """The configuration for offline training: room for ``steps`` items, and no actors to give first priorities."""
    config = _with_capacity(config, max(config.replay.capacity, steps))
    push = config.push.model_copy(update={"initial_priorities": False})
    return config.model_copy(update={"push": push})


def train_offline(
    config: RunConfig, dataset: str | None, *, resume: bool = False, origin: Origin | None = None
) -> Result:
    """Train from a dataset, without actors.

    Args:
        config: the run; its environment serves to evaluate.
        dataset: ``minari:ID``, a Minari dataset's directory, or an earlier run's directory; see ``OfflineTrainer``.
        resume: go on with the run in ``run_dir``, if there is one.
        origin: where a new run begins from.

    Raises:
        CrossborderError: see ``OfflineTrainer``.
    """
    config.check()
    with OfflineTrainer(config, dataset, resume=resume, origin=origin) as trainer:
        return trainer.train()
