"""``replay-inspect``: shows the contents of a run's replay, during the run or afterwards."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.errors import ConfigError
from common.process.command import Parser, as_path, at_least, command_of
from common.process.standard_streams import answer_json, answers
from learner.storage.rundir import require_run

if TYPE_CHECKING:
    from crossborder.inspecting.inspection import Inspection, ValueHistogram

SHOWN_RECORDS: Final = 10
MAX_SHOWN: Final = 100
"""Rows that stand side by side in a table; no terminal shows more, and rich takes ever longer for each."""
EXAMPLES = """\
  replay-inspect runs/cartpole-20261121-085026-3f2a              of a run that has ended or still goes on
  replay-inspect runs/cartpole-20261121-085026-3f2a --rows 10    the ten newest rows
  replay-inspect runs/cartpole-20261121-085026-3f2a --json       for a script
  replay-inspect runs/cartpole-20261121-085026-3f2a --export backup    a copy that --resume goes on from, also meanwhile
"""


def parser() -> Parser:
    """The command's options."""
    made = Parser("replay-inspect", __doc__, EXAMPLES, level="WARNING")
    made.add_value("run", "RUN", "the run's directory", as_path)
    made.add_value(
        "--rows", "N", "how many of the newest rows to show; without --json, at most 100", at_least(0), default=3
    )
    made.add_flag("--json", "print one JSON object")
    made.add_value(
        "--export",
        "DIR",
        "copy the run with its newest checkpoint and its replay to a new directory DIR; the run may still go on",
        as_path,
    )
    return made


def _inspect(arguments: argparse.Namespace) -> None:
    if arguments.rows > MAX_SHOWN and not arguments.json:
        raise ConfigError(f"--rows: expected at most {MAX_SHOWN} without --json, found {arguments.rows}; add --json")
    require_run(arguments.run)
    from crossborder.inspecting.inspection import Inspection

    if arguments.export is not None:
        _export(arguments.run, arguments.export)
        return
    inspection = Inspection(arguments.run)
    if arguments.json:
        answer_json(_values(inspection, arguments.rows))
    else:
        _print(Console(file=answers()), inspection, arguments.rows)


def _export(run: Path, to: Path) -> None:
    from crossborder.inspecting.backup import back_up

    copied = back_up(run, to)
    answers().write(
        f"{to}: a copy of {run} at opt step {copied.opt_steps}, with {copied.rows} rows; go on with it by --resume\n"
    )


def _values(inspection: Inspection, n_rows: int) -> dict[str, Any]:
    return {
        **inspection.summary(),
        "schema": inspection.memory.schema.to_json(),
        "actors": inspection.actors(),
        "newest": inspection.newest(n_rows),
        "quarantine": inspection.quarantine(),
        "histograms": {
            name: {**asdict(histogram), "edges": histogram.edges()}
            for name, histogram in inspection.histograms().items()
        },
    }


def _headline(summary: Mapping[str, Any]) -> str:
    oldest = summary["oldest_seconds"]
    parts = [
        f"{summary['rows']:,} of {summary['capacity']:,} rows ({summary['fill']:.0%})",
        f"{summary['drawable']:,} steps to draw",
        f"{summary['rows_stored']:,} rows and {summary['steps_stored']:,} steps ever stored",
        f"{summary['row_bytes']} bytes a row",
        f"{summary['allocated_bytes'] / 1e6:,.1f} MB allocated",
    ]
    if oldest is not None:
        parts.append(f"the oldest came {oldest:,.1f} s before an actor was last heard")
    return "; ".join(parts)


def _print(console: Console, inspection: Inspection, n_rows: int) -> None:
    console.print(_headline(inspection.summary()), highlight=False)
    console.print(_table("columns", ("name", "dtype", "shape"), inspection.memory.schema.to_json()))
    actors = inspection.actors()
    if actors:
        console.print(_table("actors", (*actors[0],), actors))
    newest = inspection.newest(n_rows)
    if newest:
        console.print(_side_by_side("newest rows", newest))
    _print_quarantine(console, inspection.quarantine())
    for name, histogram in inspection.histograms().items():
        console.print(_bars(name, histogram))


def _print_quarantine(console: Console, records: list[dict[str, Any]]) -> None:
    """The newest records, as many as a screen has room for."""
    if records:
        title = f"quarantine: {len(records)} batches refused or rows suspected, newest first; all with --json"
        shown = [{**record, "time": _clock_time(record["time"])} for record in records[:SHOWN_RECORDS]]
        console.print(_table(title, ("time", "actor_id", "host", "seq", "index", "reason", "message"), shown))


def _clock_time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds).astimezone().isoformat(sep=" ", timespec="seconds")


# Cells are ``Text``, in which rich finds no markup: strangers choose hosts and messages.
def _table(title: str, headings: tuple[str, ...], rows: Iterable[dict[str, Any]]) -> Table:
    table = Table(*headings, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row[heading])) for heading in headings))
    return table


def _side_by_side(title: str, rows: list[dict[str, Any]]) -> Table:
    """A row of the replay in each column."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    for name in rows[0]:
        table.add_row(name, *(Text(_cell(row[name])) for row in rows))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['shape']} {_cell(value['min'])}…{_cell(value['max'])}"
    if isinstance(value, list):
        return f"[{' '.join(map(_cell, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _bars(name: str, histogram: ValueHistogram) -> Table:
    title = f"{name}: mean {histogram.mean:.4g}, {histogram.low:.4g} to {histogram.high:.4g}, {histogram.n:,} rows"
    if histogram.n_nonfinite:
        title += f", and {histogram.n_nonfinite:,} with NaN or infinity"
    table = Table.grid("", "", "", padding=(0, 1))
    table.title, table.title_justify = title, "left"
    highest = max(histogram.counts)
    for low, count in zip(histogram.edges(), histogram.counts, strict=False):
        table.add_row(f"{low:.4g}", Bar(highest, 0, count, width=40), f"{count:,}")
    return table


main = command_of(parser, _inspect)
