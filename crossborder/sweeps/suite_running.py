"""Trains the agents of a suite: a sweep over seeds for each agent in each task.

    SUITE/AGENT/TASK/                  a sweep; see ``directory``
    SUITE/results.jsonl                a line for each run that has ended
    SUITE/table.md, picture.png        the comparison

Several processes may work on it, as on a sweep.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from rich.console import Console

from common.errors import ChildFailedError
from crossborder.sweeps.directory import SweepDirectory, alone_in
from crossborder.sweeps.study import SweepStudy
from crossborder.sweeps.suite_config import SuiteConfig
from crossborder.sweeps.suite_picture import draw_suite
from crossborder.sweeps.suite_results import SuiteRun, collect_runs, group_runs, read_runs, to_lines, write_table
from crossborder.sweeps.sweeping import Sweeper
from learner.shared.durable import replace_text

log = logging.getLogger(__name__)


class SuiteRunner:
    """The runs of a suite in a directory.

    Raises:
        ConfigError: the directory has another suite, or a file of published runs cannot be read.
        RunDirectoryError: the directory cannot be written.
    """

    def __init__(self, suite: SuiteConfig, home: Path, path: Path) -> None:
        self._suite, self._path = suite, path
        self._published = [run for file in suite.published for run in read_runs(home / file)]
        self._cases: dict[tuple[str, str], tuple[SweepDirectory, SweepStudy]] = {}
        for (agent, task), sweep in suite.sweeps(home).items():
            directory = SweepDirectory(path / agent / task, sweep)
            self._cases[agent, task] = directory, SweepStudy(directory)

    def train(self, stopping: threading.Event, console: Console | None, *, jobs: int, most: int | None) -> None:
        """Train until all runs have ended. All agents get their first seed in all tasks before one gets its second.

        Args:
            stopping: when it is set, training ends; its runs can be resumed.
            console: a terminal for bars; None logs lines.
            jobs: runs at one time, all of one agent and task.
            most: the most runs to train here; None trains all.

        Raises:
            ChildFailedError: the first runs of an agent in a task all failed. The others have been trained.
        """
        n_seeds = len(self._suite.seeds)
        left = len(self._cases) * n_seeds if most is None else most
        trained = set[tuple[str, str]]()
        for _ in range(n_seeds):
            for case, (directory, study) in self._cases.items():
                ended, turns = len(study.finished()), min(jobs, left)
                fails = case in trained and study.find_failure()
                if stopping.is_set() or not turns or ended == n_seeds or fails:
                    continue
                log.info("%s, %s: %d of %d runs have ended", *case, ended, n_seeds)
                left -= Sweeper(directory, study, stopping, console, jobs=turns, trials=turns).run()
                trained.add(case)
                with alone_in(self._path):
                    self._keep()
        found = {case: self._cases[case][1].find_failure() for case in (self._cases if most is None else trained)}
        failures = [f"{agent}, {task}: {failure}" for (agent, task), failure in found.items() if failure]
        if failures and not stopping.is_set():
            raise ChildFailedError("; ".join(failures))

    def compare(self) -> str:
        """Write the results of the runs that have ended, the table and the picture; return the table."""
        with alone_in(self._path):
            groups = group_runs(self._suite, self._keep() + self._published)
            table = write_table(self._suite, groups)
            replace_text(self._path / "table.md", table)
            draw_suite(self._suite, groups, self._path / "picture.png")
        return table

    def _keep(self) -> list[SuiteRun]:
        """Write ``results.jsonl``, which no other process writes meanwhile; return its runs."""
        runs = [run for case, found in self._cases.items() for run in collect_runs(*case, *found)]
        replace_text(self._path / "results.jsonl", to_lines(runs))
        return runs
