"""Shows how a sweep goes on: by bars in a terminal, elsewhere by a logged line for each event."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from common.process.command import Main, Parser, run_until_signal
from common.process.log import setup_logging
from common.process.signals import StopSignals
from common.process.standard_streams import own_streams

log = logging.getLogger(__name__)


class Board:
    """Shows the trials of a sweep while the context is open; any thread may call its methods.

    Args:
        n_trials: of the whole sweep.
        finished: trials that have ended before.
        console: a terminal for bars; None logs lines.
    """

    def __init__(self, n_trials: int, finished: int, console: Console | None) -> None:
        self._has_bars = console is not None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, console=console, disable=console is None)
        self._all = self._bars.add_task("trials", total=n_trials, completed=finished, note="")
        self._runs: dict[tuple[int, int], TaskID] = {}
        self._shown: dict[tuple[int, int], float] = {}

    def __enter__(self) -> Board:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def began(self, number: int, values: Mapping[str, Any]) -> None:
        """Show that a trial with these settings begins or goes on."""
        log.info("trial %d: %s", number, ", ".join(f"{key} {short(value)}" for key, value in values.items()))

    def progressed(self, number: int, seed: int, opt_steps: int, max_opts: int, values: Mapping[float, float]) -> None:
        """Show the progress of a run and the values of its score, by their opt steps."""
        key = number, seed
        if key not in self._runs:
            self._runs[key] = self._bars.add_task(f"trial {number}, seed {seed}", total=max_opts, note="")
        newest = max(values, default=0.0)
        note = f"{values[newest]:.5g}" if values else ""
        self._bars.update(self._runs[key], completed=opt_steps, note=note)
        if values and not self._has_bars and self._shown.get(key) != newest:
            log.info("trial %d, seed %d: opt step %.0f of %d, %s", number, seed, newest, max_opts, note)
            self._shown[key] = newest

    def ended(self, number: int, outcome: str, *, is_failure: bool = False) -> None:
        """Show how a trial ended; a failure is a warning."""
        for key in [key for key in [*self._runs] if key[0] == number]:  # A copy: other threads add runs meanwhile.
            self._bars.remove_task(self._runs.pop(key))
        self._bars.advance(self._all)
        log.log(logging.WARNING if is_failure else logging.INFO, "trial %d: %s", number, outcome)


def short(value: Any) -> str:
    """A value as tables show it."""
    return f"{value:.5g}" if isinstance(value, float) else "-" if value is None else str(value)


def command_with_bars_of(
    make: Callable[[], Parser], act: Callable[[argparse.Namespace, Console | None, StopSignals], None]
) -> Main:
    """The main function of a command that shows a board, until it ends or a signal stops it."""

    def main(argv: Sequence[str] | None = None) -> int:
        made = make()
        arguments = made.parse_args(argv)
        with own_streams():
            console = Console(stderr=True) if sys.stderr.isatty() and arguments.log_format == "text" else None
            setup_logging(arguments.log_level, arguments.log_format, console)
            return run_until_signal(made.prog, arguments.log_format, partial(act, arguments, console))

    return main
