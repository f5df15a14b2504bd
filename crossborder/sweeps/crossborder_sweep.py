"""``crossborder-sweep``: trains with the seeds and settings that a YAML file names, and finds the best settings."""

from __future__ import annotations

import argparse
import logging
import threading
from pathlib import Path

from rich.console import Console

from common.errors import ChildFailedError
from common.process.command import Parser, as_path, at_least
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from crossborder.sweeps.board import command_with_bars_of

log = logging.getLogger(__name__)
EXAMPLES = """\
  crossborder-sweep examples/sweeps/cartpole.yaml --jobs 2      two trials at a time; the same command again goes on
  crossborder-sweep examples/sweeps/cartpole.yaml --trials 1    one trial: a job of an array, on a shared file system
  crossborder-sweep examples/sweeps/cartpole.yaml --trials 1 --study postgresql://optuna@db/sweeps
  crossborder-sweep examples/sweeps/cartpole.yaml --check       is every setting right?
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-sweep", __doc__, EXAMPLES)
    made.add_value("sweep", "FILE", "the sweep's YAML file: docs/sweeps-and-plots.md", as_path)
    made.add_value("--dir", "DIR", "the directory of the sweep (default: sweeps/ and the file's name)", as_path)
    made.add_value("--jobs", "N", "the number of trials that run at the same time", at_least(1), default=1)
    made.add_value("--trials", "N", "run at most N trials here (default: all)", at_least(1))
    made.add_value("--study", "URL", "a database for Optuna, such as sqlite:///study.db (default: a file in DIR)")
    made.add_flag("--check", "check the sweep and its first settings, then exit")
    return made


def _sweep(arguments: argparse.Namespace, console: Console | None, signals: StopSignals) -> None:
    from crossborder.sweeps.directory import SweepDirectory
    from crossborder.sweeps.results import over_seeds, table, write_results
    from crossborder.sweeps.study import SweepStudy, naming_database_errors
    from crossborder.sweeps.sweep_check import check_sweep
    from crossborder.sweeps.sweep_config import load_sweep, warn_of_unequal_steps
    from crossborder.sweeps.sweeping import Sweeper
    from learner.shared.durable import naming_write_errors

    # 1. Mistakes are found here, and not by each trial.
    sweep = load_sweep(arguments.sweep)
    check_sweep(sweep)
    if warning := warn_of_unequal_steps(sweep):
        log.warning("%s: %s", arguments.sweep, warning)
    if arguments.check:
        answers().write(f"{arguments.sweep}: good. {sweep.n_trials} trials, {len(sweep.dimensions())} settings\n")
        return
    # 2. The trials. Other commands may run trials of the same sweep at the same time.
    stopping = threading.Event()
    directory = SweepDirectory(arguments.dir or Path("sweeps") / arguments.sweep.stem, sweep)
    with naming_write_errors(directory.path), naming_database_errors():
        study = SweepStudy(directory, arguments.study)
        signals.on_stop = stopping.set
        Sweeper(directory, study, stopping, console, jobs=arguments.jobs, trials=arguments.trials).run()
        # 3. The results of all trials that have ended, also of those that other commands have run.
        rows = write_results(directory, study)
    Console(file=answers()).print(table(rows, sweep))
    if not sweep.space:
        answers().write(f"{over_seeds(rows)}\n")
    best = ", best.yaml" if (directory.path / "best.yaml").exists() else ""
    answers().write(
        f"{len(rows)} of {sweep.n_trials} trials have ended: {directory.path} (results.csv{best}, trials/)\n"
    )
    if not stopping.is_set() and (failure := study.find_failure()):
        raise ChildFailedError(failure)


main = command_with_bars_of(parser, _sweep)
