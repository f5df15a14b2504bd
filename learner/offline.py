"""Training from a dataset, in one process and without acting: border's ``train_offline``.

Learner loop, evaluator, records and checkpoints are the ones of training with actors, and so is the configuration.
With one seed the same curve comes out every time.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from rich.console import Console

from common.config import RunConfig
from common.data import Items
from common.errors import DatasetError
from learner.acting import LocalSink
from learner.dataset import Dataset, open_dataset
from learner.learner import Learner
from learner.progress import loading
from learner.replay.memory import ReplayMemory
from learner.run import Result, Run
from learner.status import Status


class OfflineTrainer:
    """An agent that learns from what others did. Use once, as a context manager; entering it loads the dataset.

    The items are copied into the run's own replay, whose capacity grows to hold them all; ``trainer.warmup_period``,
    ``trainer.opt_interval``, ``replay.samples_per_insert`` and ``push.initial_priorities`` mean nothing here.

    Args:
        config: checked already.
        dataset: ``minari:ID``, a Minari dataset's directory, or an earlier run's directory.
        console: shows the loading on it if it is a terminal; None logs plain lines.

    Raises:
        DatasetError: the dataset cannot be read, is empty, or holds values that are not finite.
        SchemaMismatchError: its items are not those of this run's environment and step processor.
        CrossborderError: something could not be built or opened.
    """

    def __init__(self, config: RunConfig, dataset: str, console: Console | None = None) -> None:
        self.config = config
        self._source, self._console = dataset, console
        self._stack = ExitStack()

    def __enter__(self) -> OfflineTrainer:
        with self._stack as stack, open_dataset(self._source) as dataset:
            self.config = _with_room(self.config, len(dataset))
            self._run = Run(self.config, stack)
            self.learner: Learner = self._run.make_learner(_nobody, stack)
            self._load(dataset)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _load(self, dataset: Dataset) -> None:
        memory, sink, batch = self._run.memory, LocalSink(self._run.memory), self.config.push.n_buffer
        with loading(dataset.name, len(dataset), self._console) as more:
            for items in dataset.items(self._run.parts):
                rows = memory.schema.count(items)
                _require_room(memory, rows, dataset)
                _require_finite(items, dataset.name, memory.committed)
                for start in range(0, rows, batch):  # The replay has room for a batch of this size, whatever it holds.
                    sink.push({name: column[start : start + batch] for name, column in items.items()})
                more(rows)
        if not memory.committed:
            raise DatasetError(f"dataset {dataset.name}: expected items to learn from, found none")

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


def _with_room(config: RunConfig, steps: int) -> RunConfig:
    """The configuration as it holds offline: room for so many items, no ratio to keep, no actors."""
    capacity = max(config.replay.capacity, steps)
    replay = config.replay.model_copy(update={"capacity": capacity, "samples_per_insert": None})
    push = config.push.model_copy(update={"initial_priorities": False})
    return config.model_copy(update={"replay": replay, "push": push})


def _require_room(memory: ReplayMemory, rows: int, dataset: Dataset) -> None:
    """See that no item would be overwritten: a step processor may give more than one a step."""
    if memory.committed + rows > memory.capacity:
        raise DatasetError(
            f"dataset {dataset.name}: expected at most {memory.capacity} items of {len(dataset)} steps, found more; "
            "raise replay.capacity"
        )


def _require_finite(items: Items, dataset: str, first: int) -> None:
    """See that items, numbered from ``first``, can be learnt from."""
    for name, column in items.items():
        bad = np.argwhere(~np.isfinite(column))
        if len(bad):
            found, item = column[tuple(bad[0])], first + int(bad[0][0])
            raise DatasetError(
                f"dataset {dataset}: column '{name}': expected finite values, found {found} in item {item}"
            )


def train_offline(config: RunConfig, dataset: str) -> Result:
    """Train from a dataset, without actors.

    Args:
        config: the run; its environment serves to evaluate.
        dataset: ``minari:ID``, a Minari dataset's directory, or an earlier run's directory.

    Raises:
        CrossborderError: see ``OfflineTrainer``.
    """
    config.check()
    with OfflineTrainer(config, dataset) as trainer:
        return trainer.train()
