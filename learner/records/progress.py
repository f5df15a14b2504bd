"""Progress of a run while it trains: a live display in a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import rich.progress
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from learner.records.status import Status, format_rate, format_return

log = logging.getLogger(__name__)
LIVE_SECONDS, PLAIN_SECONDS = 0.5, 5.0
"""The time between two updates of the display, and between two log lines."""


@contextmanager
def loading_progress(name: str, total: int, console: Console | None) -> Iterator[Callable[[int], None]]:
    """Show how much of a dataset is loaded; the callable takes the number of rows since its last call.

    Args:
        name: of the dataset.
        total: rows of the dataset; a step processor may make more or fewer items of them.
        console: a terminal that shows a bar; None logs plain lines.
    """
    done, next_line = 0, time.monotonic() + PLAIN_SECONDS
    with rich.progress.Progress(console=console, disable=console is None) as bars:
        bar = bars.add_task(f"loading {name}", total=total)

        def advance(rows: int) -> None:
            nonlocal done, next_line
            done += rows
            bars.update(bar, completed=done)
            if console is None and time.monotonic() >= next_line:
                log.info("loading %s: %d of %d rows", name, done, total)
                next_line = time.monotonic() + PLAIN_SECONDS

        yield advance
    log.info("loaded %d rows from %s", done, name)


class Progress:
    """Shows the status of a run while the context is open, from a separate thread.

    Args:
        status: returns the present status; that thread calls it while training goes on.
        console: a terminal, or a notebook with ipywidgets, for the live display; others get lines. None logs them.
    """

    def __init__(self, status: Callable[[], Status], console: Console | None) -> None:
        self._status = status
        self._console = console
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        if self._console is None:
            self._tell_lines(lambda line: log.info("%s", line))
        elif not _can_be_live(self._console):
            # A notebook breaks long lines, as ``print`` does; in a file a status is one line.
            self._tell_lines(self._console.print if self._console.is_jupyter else self._console.out)
        else:
            self._show_live(self._console)

    def _tell_lines(self, tell: Callable[[str], None]) -> None:
        before = self._status()
        while not self._closed.wait(PLAIN_SECONDS):
            now = self._status()
            tell(now.line(before))
            before = now

    def _show_live(self, console: Console) -> None:
        statuses = deque([self._status()], maxlen=1 + round(PLAIN_SECONDS / LIVE_SECONDS))
        with Live(console=console, auto_refresh=False) as live:
            is_over = False
            while not is_over:
                is_over = self._closed.wait(LIVE_SECONDS)
                statuses.append(self._status())
                live.update(render(statuses[-1], statuses[0]), refresh=True)


def _can_be_live(console: Console) -> bool:
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


def render(status: Status, before: Status) -> Group:
    """The live display of a status: bars for opt steps and score, then the rates since ``before``, then the fleet."""
    bars = Table.grid(padding=(0, 1))
    bars.add_row(
        Text(status.name, "bold"),
        ProgressBar(status.max_opts, status.opt_steps, width=40),
        f"{status.opt_steps:,} of {status.max_opts:,} opt steps",
    )
    if status.target_score is not None and math.isfinite(status.best_score):
        newest = status.record.get("eval_reward", math.nan)
        # A bar grows from zero to the target; a target such as -200 gets the numbers alone.
        bar = ProgressBar(status.target_score, max(0.0, status.best_score), width=40, complete_style="green")
        bars.add_row(
            "score",
            bar if status.target_score > 0 else "",
            f"best {status.best_score:.1f} of {status.target_score:g}, newest {newest:.1f}",
        )
    record, rates = status.record, status.rates_since(before)
    wanted = f" of {status.samples_per_insert:g}" if status.samples_per_insert else ""
    flow = (
        f"{status.seconds:.0f} s · {format_rate(rates[0])} opt/s · {format_rate(rates[1])} steps/s · "
        f"replay ratio {status.replay_ratio:.1f}{wanted} · replay {status.replay_size:,}"
    )
    loss = record.get("loss", record.get("loss_critic", math.nan))
    fleet = (
        f"{status.actors_online} actors · return {format_return(status.return_mean)} · "
        f"policy lag {status.policy_lag:.0f} opt steps · loss {loss:.4g}"
    )
    return Group(bars, Text(flow, "cyan"), Text(fleet, "cyan"))
