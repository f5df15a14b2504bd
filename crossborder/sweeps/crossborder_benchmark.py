"""``crossborder-benchmark``: trains the agents of a suite in its tasks with its seeds, and compares their scores.

The table and the picture have interquartile means with bootstrap intervals of 95 %, and performance profiles.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from rich.console import Console

from common.errors import CrossborderError, by_exit_code
from common.process.command import Parser, as_path, at_least
from common.process.signals import StopSignals
from common.process.standard_streams import answers
from crossborder.sweeps.board import command_with_bars_of

EXAMPLES = """\
  crossborder-benchmark classic                      a shipped suite; the same command again goes on
  crossborder-benchmark classic --runs 0             the table and the picture of the runs that have ended
  crossborder-benchmark suite.yaml --runs 1          one run: a job of an array, on a shared file system
  crossborder-benchmark minatar --check              is every setting right?
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-benchmark", __doc__, EXAMPLES)
    made.add_value("suite", "SUITE", "a suite's YAML file, or the name of a shipped suite")
    made.add_value("--dir", "DIR", "the directory of the results (default: suites/ and the suite's name)", as_path)
    made.add_value("--jobs", "N", "the number of runs at the same time", at_least(1), default=1)
    made.add_value("--runs", "N", "train at most N runs here (default: all)", at_least(0))
    made.add_flag("--check", "check the suite and its configurations, then exit")
    return made


def _benchmark(arguments: argparse.Namespace, console: Console | None, signals: StopSignals) -> None:
    from common.config.nested import read_yaml
    from common.settings import validate
    from crossborder.sweeps.suite_config import SuiteConfig, find_suite
    from crossborder.sweeps.suite_results import read_runs
    from crossborder.sweeps.suite_running import SuiteRunner
    from crossborder.sweeps.sweep_check import check_sweep
    from learner.shared.durable import naming_write_errors

    path = find_suite(arguments.suite)
    suite = validate(SuiteConfig, read_yaml(path))
    for (agent, task), sweep in suite.sweeps(path.parent).items():
        try:
            check_sweep(sweep)
        except CrossborderError as error:
            raise by_exit_code(error.exit_code, f"{agent}, {task}: {error}") from error
    for file in suite.published:
        read_runs(path.parent / file)
    if arguments.check:
        answers().write(f"{path}: good. {len(suite.cases) * len(suite.seeds)} runs\n")
        return
    stopping = threading.Event()
    place = arguments.dir or Path("suites") / path.stem
    with naming_write_errors(place):
        runner = SuiteRunner(suite, path.parent, place)
        signals.on_stop = stopping.set
        try:
            runner.train(stopping, console, jobs=arguments.jobs, most=arguments.runs)
        finally:
            answers().write(f"{runner.compare()}\n{place} (results.jsonl, table.md, picture.png)\n")


main = command_with_bars_of(parser, _benchmark)
