"""crossborder from Python, for notebooks and scripts: train a configuration, read its records, load its policy.

    import crossborder

    run = crossborder.train("configs/cartpole.yaml", actors=2, settings={"trainer.max_opts": 20_000})
    crossborder.read_records(run.run_dir).plot("seconds", "eval_reward")
    policy = crossborder.load_policy(run.run_dir / "best")

Trainer, actors and files are those of the commands, so a command can go on with a run that began here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from common.config.nested import put
from common.config.run_config import RunConfig, read_values
from common.errors import ConfigError, FaultError
from common.hints import nearest_path
from common.home import expand_path
from common.process.signals import delaying_interrupt
from common.settings import validate
from learner.loop.in_turns import Trainer
from learner.loop.run import Result
from learner.loop.server import LearnerServer
from learner.records.csv_recorder import read_complete_lines
from learner.records.progress import Progress
from learner.storage.checkpoint import load_policy

if TYPE_CHECKING:
    import pandas

__all__ = ["load_policy", "read_records", "train"]


def train(
    config: str | Path | Mapping[str, Any],
    *,
    actors: int = 0,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Train until the run ends; an interrupt ends it after the present step, and the policy so far is saved.

    A second interrupt ends it at once, also in the middle of a step.

    Args:
        config: a run's YAML file, or its values. Numbers and arrays of numpy are saved as numbers and lists.
        actors: actor processes on this host, as ``learner-server --local-actors`` starts them; 0: train in this process
            in turns, as ``sync-train`` does. If other programs have ports that the configuration
            does not name, free ones take their place.
        settings: values that replace those of the configuration, by their dotted keys, such as ``{"agent.params.lr":
            0.001}``. A mapping replaces the whole section: ``{"trainer": {…}}`` keeps no other setting of trainer.
        resume: resume the run in ``run_dir``, which must be named, if there is one.
        progress: show figures of the run while it trains.

    Returns:
        The outcome of the run, with its directory in ``run_dir``.

    Raises:
        ConfigError: the configuration or another argument is not valid.
        CrossborderError: a part cannot be built, a part has called ``sys.exit``, or training failed.
        KeyboardInterrupt: the run was interrupted, and has ended in order; the message names its directory.
    """
    _check_arguments(actors, settings, resume=resume, progress=progress)
    values: dict[str, Any] = (
        _plain(config) if isinstance(config, Mapping) else read_values(expand_path(config, "config"))
    )
    for key, value in (settings or {}).items():
        put(values, key, _plain(value, key))
    run = validate(RunConfig, values)
    if resume and run.run_dir is None:
        raise ConfigError(
            "resume: expected run_dir in the configuration or in settings, found none: name that of the run"
        )
    with _naming_exit():
        run.check()
        console = Console() if progress else None
        opened: LearnerServer | Trainer = (
            LearnerServer(run, actors, resume=resume) if actors else Trainer(run, resume=resume)
        )
        with opened as trainer, Progress(trainer.status, console):
            message = f"the run has ended in order; its run_dir is {trainer.run.dir.path}"
            with delaying_interrupt(trainer.learner.request_stop, message):
                return trainer.train()


@contextmanager
def _naming_exit() -> Iterator[None]:
    """A context that runs users' parts, one of which may call ``sys.exit``: the user's program would end with it.

    Raises:
        FaultError: in the place of SystemExit.
    """
    try:
        yield
    except SystemExit as error:
        if callable(signal.getsignal(signal.SIGTERM)):
            raise  # It may come from the program's own handler.
        raise FaultError(f"one of your parts raised {error!r}, which would end this program in silence") from error


def _check_arguments(actors: object, settings: object, **switches: object) -> None:
    if not isinstance(actors, int | np.integer) or isinstance(actors, bool) or actors < 0:
        raise ConfigError(f"actors: expected a whole number, 0 or more, found {actors!r}")
    if not isinstance(settings, Mapping | None) or not all(isinstance(key, str) for key in settings or {}):
        raise ConfigError(f"settings: expected values by dotted keys, such as agent.params.lr, found {settings!r:.80}")
    for name, is_on in switches.items():
        if not isinstance(is_on, bool):
            raise ConfigError(f"{name}: expected True or False, found {is_on!r:.80}")


def _plain(value: Any, where: str = "") -> Any:
    """A copy of what stands at a key, with numbers and lists of Python in the place of numpy's, for a YAML file."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(inner, f"{where}.{key}" if where else str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where) for inner in value]
    if not isinstance(value, str | int | float | Path | None):
        raise ConfigError(
            f"{where}: expected a number, a text, a truth value, a list or a mapping, found {value!r:.80}"
        )
    return value


def read_records(run_dir: str | Path) -> pandas.DataFrame:
    """The records of a run, which may still train: a row for each record, a column for each key.

    A value that a record does not have, such as a score between two evaluations, is NaN.

    Raises:
        ConfigError: there is no such run, or its records cannot be read.
        ImportError: pandas is not installed.
    """
    try:
        import pandas  # noqa: PLC0415 - an extra that training does not need
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'crossborder[notebook]'") from error
    directory = expand_path(run_dir, "run_dir")
    path = directory / "metrics.csv"
    try:
        return pandas.read_csv(StringIO(read_complete_lines(path)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{nearest_path(directory)}") from error
    except ValueError as error:  # All errors of pandas in a text are ValueErrors.
        raise ConfigError(f"{path}: expected a CSV file, found another kind of file: {error}") from error
