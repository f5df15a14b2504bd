"""The trials of a sweep in Optuna's storage, which several processes may share."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.errors import ConfigError, PluginError, RunDirectoryError

try:
    import optuna
except ImportError as error:
    raise PluginError(f"{error}; pip install 'crossborder[sweep]'") from error
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from crossborder.sweeps.dimensions import Choices
from crossborder.sweeps.directory import SweepDirectory, lock_alone
from crossborder.sweeps.sweep_config import SweepConfig

MOST_FAILURES: Final = 3
"""A sweep ends after this many trials if all of them have failed: later ones would fail as well."""


class _WholeLines(JournalFileOpenLock):
    """Optuna's lock of the file with the trials, held by the kernel: Optuna's own outlives a process that is killed.

    Optuna adds lines without a look at the end of the file. Behind half a line, they could never be read again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock; cut off half a line of a process that was killed or found the disk full."""
        fd = os.open(self._path, os.O_RDWR)
        try:
            lock_alone(fd, self._path)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                os.ftruncate(fd, os.pread(fd, size, 0).rfind(b"\n") + 1)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd  # After the wait, since the threads of a process share this object.
        return True

    def release(self) -> None:
        """Let the next one write."""
        os.close(self._fd)


def _open_journal(directory: SweepDirectory) -> BaseStorage:
    path = directory.path / "study.journal"
    _require_records(path)
    return JournalStorage(JournalFileBackend(str(path), _WholeLines(path)))


def _require_records(path: Path) -> None:
    """Check each whole line of the file, if there is one: Optuna would raise as many kinds of errors as there are."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            is_record = not line.endswith(b"\n") or "op_code" in json.loads(line)
        except (ValueError, TypeError, RecursionError):
            is_record = False
        if not is_record:
            raise RunDirectoryError(f"{path}, line {number}: expected a record in JSON, found {line!r:.80}")


def _open_database(url: str) -> BaseStorage:
    try:
        return get_storage(url)
    except (SQLAlchemyError, ImportError, RuntimeError, ValueError) as error:  # The last two are of other versions.
        reason = str(error).splitlines()[0]  # The URL may hold a password, and is not repeated.
        raise ConfigError(
            f"--study: expected the URL of a database that can be opened, such as sqlite:///study.db: {reason}"
        ) from error


@contextmanager
def naming_database_errors() -> Iterator[None]:
    """Raise ConfigError if the database of ``--study`` fails in this context; it may go away while trials run."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise ConfigError(f"--study: the database fails: {str(error.__cause__ or error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Claimed:
    """A trial that this process works on."""

    trial: Trial
    values: Mapping[str, Any]
    """The chosen settings by path."""
    lock: int
    """The file descriptor of the trial's lock; close it at the end."""


class SweepStudy:
    """The trials of a sweep.

    Args:
        directory: of the sweep.
        storage: a URL of a database for Optuna; None keeps the trials in a file of the directory.

    Raises:
        ConfigError: the database cannot be opened.
        RunDirectoryError: the file is damaged.
    """

    def __init__(self, directory: SweepDirectory, storage: str | None = None) -> None:
        self._directory, self._sweep = directory, directory.sweep
        optuna.logging.disable_default_handler()
        optuna.logging.enable_propagation()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with directory.alone():
            self.optuna = optuna.create_study(
                study_name=directory.read_study_name(),
                storage=_open_database(storage) if storage else _open_journal(directory),
                direction=self._sweep.score.direction,
                pruner=_pruner(self._sweep),
                load_if_exists=True,
            )
            if self._sweep.is_grid:
                self._enqueue_grid()

    def _enqueue_grid(self) -> None:
        dimensions = self._sweep.dimensions()
        lists = [each.values for each in dimensions.values() if isinstance(each, Choices)]
        # Optuna's own skip_if_exists would look at all trials again for each combination.
        known = {_text_of(params_of(trial)) for trial in self.optuna.get_trials(deepcopy=False)}
        for values in itertools.product(*lists):
            params = dict(zip(dimensions, map(json.dumps, values), strict=True))
            if _text_of(params) not in known:
                self.optuna.enqueue_trial(params)

    def claim(self) -> Claimed | None:
        """Take a trial to work on: one that a process has left unfinished, or else a new one; None if there is none."""
        with self._directory.alone():
            for left in self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                lock = self._directory.claim(left.number)
                if lock is None:
                    continue
                # Its process may have told the outcome, and let go of the lock, after the look above.
                if self.optuna.get_trials(deepcopy=False)[left.number].state is TrialState.RUNNING:
                    # Optuna has no public name for the id, by which its constructor finds a trial.
                    return self._choose(Trial(self.optuna, left._trial_id), lock)
                os.close(lock)
            known = self.optuna.get_trials(deepcopy=False)
            begun = [trial for trial in known if trial.state is not TrialState.WAITING]
            if len(begun) >= self._sweep.n_trials:
                return None
            self.optuna.sampler = _sampler(self._sweep, len(begun))
            trial = self.optuna.ask()
            taken = self._directory.claim(trial.number)
            assert taken is not None, "nobody else knows of the trial yet"
            return self._choose(trial, taken)

    def _choose(self, trial: Trial, lock: int) -> Claimed:
        dimensions = self._sweep.dimensions()
        if not self._sweep.space:  # Optuna would refuse a seed that was added later: a list may not change there.
            chosen = params_of(self.optuna.get_trials(deepcopy=False)[trial.number])
            return Claimed(trial, {key: each.decode(chosen[key]) for key, each in dimensions.items()}, lock)
        return Claimed(trial, {key: each.suggest(trial, key) for key, each in dimensions.items()}, lock)

    def is_to_wait(self) -> bool:
        """Whether a trial will be free soon: the process that worked on it was killed, and its run is stopping."""
        running = self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return any(self._directory.is_abandoned(trial.number) for trial in running)

    def find_failure(self) -> str | None:
        """Why no further trial should run: the first, or all of a smaller sweep, have failed. None: one may run."""
        ended = self.finished()
        if len(ended) < min(MOST_FAILURES, self._sweep.n_trials) or {each.state for each in ended} != {TrialState.FAIL}:
            return None
        last = self._directory.place_of(ended[-1].number)
        return f"all of {len(ended)} trials failed; the output of the last one is in {last}"

    def finished(self) -> list[FrozenTrial]:
        """The trials that have ended, in their order."""
        return [trial for trial in self.optuna.get_trials(deepcopy=False) if trial.state.is_finished()]


def params_of(trial: FrozenTrial) -> Mapping[str, Any]:
    """The settings of a trial as Optuna keeps them, whether they were enqueued or chosen."""
    params: Mapping[str, Any] = trial.system_attrs.get("fixed_params", trial.params)
    return params


def _text_of(params: Mapping[str, Any]) -> str:
    """Text by which the same settings are found again."""
    return json.dumps(params, sort_keys=True)


def _sampler(sweep: SweepConfig, begun: int) -> BaseSampler:
    """The sampler of the next trial. Each trial has its own seed, so hosts that share a sweep choose differently."""
    seed = int(np.random.SeedSequence([sweep.sampler_seed, begun]).generate_state(1)[0])
    if sweep.sampler == "random" or sweep.is_grid:
        return RandomSampler(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(seed=seed, constant_liar=True)  # Trials that still run count as bad trials.


def _pruner(sweep: SweepConfig) -> BasePruner:
    if sweep.prune is None:
        return NopPruner()
    return MedianPruner(n_startup_trials=sweep.prune.startup_trials, n_warmup_steps=sweep.prune.warmup_opts)
