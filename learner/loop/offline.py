"""Training from a dataset, in one process and without acting: border's ``train_offline``.

Learner loop, evaluator, records, checkpoints and configuration are the same as in training with actors. Two runs with
the same seed give the same curve.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

from rich.console import Console

from common.config.run_config import RunConfig
from common.errors import ConfigError, DatasetError
from learner.datasets.opening import Dataset, open_dataset
from learner.loop.run import Opened, Result, Run, open_directory
from learner.loop.wiring import make_learner
from learner.records.status import Status
from learner.storage.origin import Origin
from learner.storage.rundir import has_rows


class OfflineTrainer(Opened):
    """Trains an agent on recorded rows.

    The constructor opens the run and loads the rows. Use the trainer once, as a context manager.

    The rows are copied into the run's own replay, whose capacity grows to hold them all; ``trainer.warmup_period``,
    ``replay.samples_per_insert`` and ``push.initial_priorities`` have no effect here. A resumed run of any kind learns
    from the rows in its replay.

    Args:
        config: checked already.
        dataset: see ``open_dataset``; None uses the replay of ``origin``, or that of the run that is resumed.
        console: shows the progress of loading if it is a terminal; None logs plain lines.
        resume: resume the run in ``run_dir``, if there is one; it has its rows already, unless they were lost.
        origin: where a new run begins from.

    Raises:
        ConfigError: a new run has no dataset, or two.
        DatasetError: the dataset cannot be read, is empty, or holds values that a column refuses.
        SchemaMismatchError: its rows are not those of this run's environment and step processor.
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
        is_filled = resume and has_rows(config.run_dir)
        self._source = str(config.run_dir) if is_filled else _choose_source(dataset, origin)
        # The dataset is opened first, so that a missing dataset leaves no run directory behind.
        opening: AbstractContextManager[Dataset | None] = nullcontext() if is_filled else open_dataset(self._source)
        with ExitStack() as stack, opening as found:
            directory, earlier = open_directory(config, stack, resume=resume, origin=origin)
            capacity = earlier.saved_capacity() if earlier is not None else None
            if earlier is None or capacity is None:
                self.config = _make_room(config, found)
            else:
                self.config = _with_rows(config, capacity, initial_priorities=earlier.config.push.initial_priorities)
            self.run = stack.enter_context(Run(self.config, directory, earlier, origin=origin))
            is_copied = earlier is None and origin is not None and origin.has_replay
            if found is not None and not is_copied:
                self.run.load(found, whole=True, console=console)
            self.learner = make_learner(self.run, earlier, stack)
            self.run.write_config()
            self._stack = stack.pop_all()

    def train(self) -> Result:
        """Train until the run ends, and save ``final/`` after every kind of end.

        Raises:
            DatasetError: the agent needs more steps than the replay holds.
            CrossborderError: the evaluator's process failed, or ``final/`` could not be saved.
            Exception: from the agent or the evaluator.
        """
        learner = self.learner
        learner.start()
        with learner.training():
            while learner.outcome is None:
                if not learner.step():
                    raise DatasetError(f"dataset {self._source}: its {len(learner.buffer)} steps are too few to begin")
                learner.tick()
        self._stack.close()
        return self.run.make_result(learner)

    def status(self) -> Status:
        """The present figures of the run, from any thread."""
        return self.run.make_status(self.learner)


def _choose_source(dataset: str | None, origin: Origin | None) -> str:
    """The place of the rows for a run that has none."""
    replay = str(origin.run) if origin is not None and origin.has_replay else None
    if dataset is None and replay is None:
        raise ConfigError("--dataset: expected a dataset to fill the replay from, found none")
    if dataset is not None and replay is not None:
        raise ConfigError(f"--dataset: expected one source of rows, found {dataset} and the replay of {replay}")
    return dataset or replay or ""


def _make_room(config: RunConfig, dataset: Dataset | None) -> RunConfig:
    """The configuration with room for all rows of the dataset, and without actors that give first priorities."""
    rows = len(dataset) if dataset is not None else 0
    return _with_rows(config, max(config.replay.capacity, rows), initial_priorities=False)


def _with_rows(config: RunConfig, capacity: int, *, initial_priorities: bool) -> RunConfig:
    """The configuration with a replay of ``capacity`` rows, which have first priorities or have none."""
    replay = config.replay.model_copy(update={"capacity": capacity})
    push = config.push.model_copy(update={"initial_priorities": initial_priorities})
    return config.model_copy(update={"replay": replay, "push": push})


def train_offline(config: RunConfig, dataset: str | None, *, resume: bool = False) -> Result:
    """Train from a dataset, without actors; see ``OfflineTrainer``."""
    config.check()
    with OfflineTrainer(config, dataset, resume=resume) as trainer:
        return trainer.train()
