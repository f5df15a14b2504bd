"""``crossborder-plot``: draws the curves of several runs as one for each group, with their uncertainty.

Each curve is the interquartile mean of its runs, the shade around it a bootstrap interval of 95 %.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Mapping, Set
from glob import glob
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.hints import nearest
from common.process.command import Parser, as_output, as_path, at_least, command_of
from common.process.standard_streams import answers
from crossborder.curves.learning_curve import SCORE, Curve, is_pruned, read_curve
from learner.shared.durable import replace_text

if TYPE_CHECKING:
    from crossborder.curves.bands import Band

EXAMPLES = """\
  crossborder-plot runs/cartpole-*                                        one curve for each name of a configuration
  crossborder-plot --group 'DQN=runs/dqn-*' --group 'IQN=runs/iqn-*' --output figure.svg
  crossborder-plot sweeps/cartpole/trials/*/seed-* --by agent.params.lr   one curve for each value of a setting
  crossborder-plot runs/cartpole-* --over seconds --record train_return --csv curves.csv
"""
LABELS = {"env-steps": "environment steps", "opt-steps": "opt steps", "seconds": "seconds of training"}


def parser() -> Parser:
    """The command's options."""
    made = Parser("crossborder-plot", __doc__, EXAMPLES)
    made.add_argument(
        "runs",
        nargs="*",
        type=as_path,
        metavar="RUN",
        help="the directories of runs, or other directories with a metrics.csv",
    )
    made.add_argument(
        "--group",
        action="append",
        default=[],
        type=_group,
        metavar="NAME=GLOB",
        help="the directories that GLOB matches are one group; other runs are grouped by the name in their config.yaml",
    )
    made.add_value("--by", "KEY.KEY", "group runs by this value of their configurations")
    _add_curve_options(made)
    made.add_value("--title", "TEXT", "the title above the picture", default="")
    made.add_value("--output", "FILE", "the picture, a .png, .svg or .pdf file", as_output, default="curves.png")
    made.add_value("--csv", "FILE", "a file that gets the points of the curves", as_output)
    return made


def _add_curve_options(made: Parser) -> None:
    """Add the options that say how a curve is made of runs."""
    made.add_argument("--over", choices=LABELS, default="env-steps", help="the horizontal axis (default: env-steps)")
    made.add_argument(
        "--record",
        default="score",
        metavar="KEY",
        help="a column of metrics.csv (default: score, which is eval_reward)",
    )
    made.add_flag(
        "--hold",
        "a run that ends before others of its group keeps its last value, as runs that end at their target should "
        "(default: a group ends with its shortest run)",
    )
    made.add_argument(
        "--range",
        action="append",
        default=[],
        dest="ranges",
        type=_range,
        metavar="TASK=LOW:HIGH",
        help="the scores of a task that count as 0 and 1; a group of several tasks (environment ids) needs them",
    )
    made.add_value(
        "--points",
        "N",
        "the number of points of a curve whose runs were scored at different places",
        at_least(2),
        default=100,
    )


def _group(text: str) -> tuple[str, str]:
    name, equals, pattern = text.partition("=")
    if not (name and equals and pattern):
        raise argparse.ArgumentTypeError(f"expected NAME=GLOB, found '{text}'")
    return name, str(as_path(pattern))


def _range(text: str) -> tuple[str, tuple[float, float]]:
    task, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = 0.0, 0.0
    if not task or found[0] == found[1] or not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"expected TASK=LOW:HIGH with two different numbers, found '{text}'")
    return task, found


def _plot(arguments: argparse.Namespace) -> None:
    from crossborder.curves.bands import bring_together
    from crossborder.curves.picture import draw_picture

    record = SCORE if arguments.record == "score" else arguments.record
    groups = _groups(arguments, record)
    _require_tasks(arguments.ranges, {curve.task for curves in groups.values() for curve in curves})
    options = {"ranges": dict(arguments.ranges), "hold": arguments.hold, "points": arguments.points}
    bands = {name: bring_together(curves, **options) for name, curves in groups.items()}
    y_label = "return of evaluations" if record == SCORE else record
    if arguments.ranges:
        y_label = f"{y_label}, as a share of its range"
    draw_picture(bands, arguments.output, title=arguments.title, x_label=LABELS[arguments.over], y_label=y_label)
    if arguments.csv is not None:
        _write_csv(arguments.csv, arguments.over, bands)
    for name, band in bands.items():
        answers().write(_summary(name, band, groups[name], arguments.over))
    answers().write(f"{arguments.output}\n")


def _groups(arguments: argparse.Namespace, record: str) -> dict[str, list[Curve]]:
    """The curves of each group, in the order in which the groups are named. A group has each run once."""
    places = [(None, run) for run in arguments.runs]
    for name, pattern in arguments.group:
        found = map(Path, glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob refuses some patterns, such as "."
        matched = sorted(path for path in found if path.is_dir())
        if not matched:
            raise ConfigError(f"--group {name}={pattern}: expected directories of runs, found none")
        places += [(name, run) for run in matched]
    if not places:
        raise ConfigError("expected directories of runs, found none: name them, or groups of them by --group NAME=GLOB")
    pruned = {run: None for _, run in places if is_pruned(run)}
    if pruned:
        example = next(iter(pruned))
        answers().write(f"without {len(pruned)} runs of trials that their sweep ended early, such as {example}\n")
    groups: dict[str, dict[Path, Curve]] = {}
    for group, run in places:
        if run in pruned:
            continue
        curve = read_curve(run, arguments.over, record)
        own = curve.name if arguments.by is None else f"{arguments.by} {_value(curve, arguments.by)}"
        groups.setdefault(own if group is None else group, {}).setdefault(run.resolve(), curve)
    if not groups:
        raise ConfigError("expected runs of trials that were not ended early, found none")
    return {name: list(curves.values()) for name, curves in groups.items()}


def _require_tasks(ranges: Iterable[tuple[str, tuple[float, float]]], tasks: Set[str]) -> None:
    """Check that each range belongs to a task of the runs."""
    for task, _ in ranges:
        if task not in tasks:
            raise ConfigError(f"--range {task}: expected the task of a run{nearest(task, tasks)}")


def _value(curve: Curve, key: str) -> object:
    if key not in curve.settings:
        raise ConfigError(f"--by {key}: {curve.run / 'config.yaml'} has no such value")
    return curve.settings[key]


def _summary(name: str, band: Band, curves: list[Curve], axis: str) -> str:
    """A group in one line: where its curve ends, and whether that is before its longest run does."""
    end, longest = band.x[-1], max(curve.x[-1] for curve in curves)
    interval = f" [{band.low[-1]:.4g}, {band.high[-1]:.4g}]" if band.runs > 1 else ""
    line = f"{name}: {band.middle[-1]:.4g}{interval} at {end:,.0f} {LABELS[axis]}, {band.runs} runs"
    if longest > end:
        shortest = min(curves, key=lambda curve: curve.x[-1]).run
        line += f"; it ends with {shortest}, the longest run has {longest:,.0f} (--hold keeps last values)"
    return line + "\n"


def _write_csv(path: Path, axis: str, bands: Mapping[str, Band]) -> None:
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["group", axis, "iqm", "low", "high", "runs"])
    for name, band in bands.items():
        rows = zip(band.x, band.middle, band.low, band.high, strict=True)
        writer.writerows([name, *map(float, row), band.runs] for row in rows)
    try:
        replace_text(path, text.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


main = command_of(parser, _plot)
