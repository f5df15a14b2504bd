"""Plots and tabulates the results of ``benchmarks.returns``: docs/images/results.png, the table in docs/results.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.kept import Run, curve_of, runs_of, spread, write_tables
from benchmarks.returns import Way
from crossborder.curves.bands import bring_together
from crossborder.curves.picture import draw_band

PAGE = Path("docs/results.md")
WAYS: dict[Way, str] = {
    "1 actor": "1 actor",
    "4 actors": "4 actors",
    "16 actors": "16 actors",
    "in turns": "in turns",
    "sb3": "stable-baselines3",
}
"""The name of each way in the table."""
DRAWN: tuple[tuple[str, str, Way], ...] = (
    ("4 actors", "tab:blue", "4 actors"),
    ("in turns", "tab:green", "in turns"),
    ("stable-baselines3", "tab:orange", "sb3"),
)
"""The curves of each panel: name, colour and way."""
COMPARED: dict[str, tuple[tuple[str, ...], Path]] = {
    "table": (("cartpole", "acrobot", "lunarlander", "pendulum"), Path("docs/images/results.png")),
    "ppo": (
        (
            "ppo_cartpole",
            "ppo_acrobot",
            "ppo_lunarlander",
            "ppo_pendulum",
            "ppo_pendulum_plain",
            "ppo_halfcheetah",
            "minatar_breakout_ppo",
            "minatar_space_invaders_ppo",
        ),
        Path("docs/images/ppo_results.png"),
    ),
    "seats": (("ppo_spread", "ppo_reference"), Path("docs/images/seats.png")),
}
"""The tasks of each table of the page, by its mark, and the picture of those tasks that have runs in turns."""
DIGITS = {"seats": 1}
"""The digits of scores after the point, by the mark of their table."""


def table(tasks: Sequence[str], digits: int) -> str:
    """Medians with the range in brackets; for differences, the mean with an interval of 95 % in brackets."""
    lines = [
        "| task | way | final return | mean of the last 3 | mean of all 10 | difference to in turns "
        "| environment steps | opt steps | seconds | seeds |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for task in tasks:
        in_turns = runs_of(task, way="in turns")
        for way, name in WAYS.items():
            runs = runs_of(task, way=way)
            if runs:
                cells = [
                    spread([run["curve"][-1][1] for run in runs], digits),
                    spread([statistics.mean(score for _, score in run["curve"][-3:]) for run in runs], digits),
                    spread(_means(runs), digits),
                    _difference(_means(runs), _means(in_turns), digits) if in_turns and way != "in turns" else "",
                    f"{statistics.median(run['curve'][-1][0] for run in runs):,.0f}",
                    f"{statistics.median(run['opt_steps'] for run in runs):,.0f}",
                    spread([run["seconds"] for run in runs], 0),
                    str(len(runs)),
                ]
                lines.append(f"| {task} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _means(runs: Sequence[Run]) -> list[float]:
    """The mean score of each run's evaluations."""
    return [statistics.mean(score for _, score in run["curve"]) for run in runs]


def _difference(values: Sequence[float], others: Sequence[float], digits: int) -> str:
    """The difference of the means, and its bootstrap interval of 95 %."""
    rng = np.random.default_rng(0)
    drawn, drawn_others = (rng.choice(each, (10_000, len(each))).mean(axis=1) for each in (values, others))
    low, high = np.percentile(drawn - drawn_others, [2.5, 97.5])
    middle = statistics.mean(values) - statistics.mean(others)
    return f"{middle:+,.{digits}f} ({low:+,.{digits}f} to {high:+,.{digits}f})"


def plot(tasks: Sequence[str], picture: Path) -> None:
    """Plot one panel for each task: of each way the interquartile mean of its curves and a bootstrap interval."""
    figure = Figure(figsize=(5 * len(tasks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        for name, colour, way in DRAWN:
            if runs := runs_of(task, way=way):  # A task may have no run of a way.
                draw_band(panel, bring_together([curve_of(run) for run in runs]), name, colour)
        panel.set_title(task)
        panel.set_xlabel("environment steps")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("return of greedy episodes")
    handles = dict[str, Any]()
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(next(name for name, _, _ in DRAWN if label.startswith(name)), handle)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(DRAWN))  # Without numbers of runs.
    figure.savefig(picture, dpi=110)


def main() -> None:
    tables = dict[str, str]()
    for mark, (tasks, picture) in COMPARED.items():
        drawn = [task for task in tasks if runs_of(task, way="in turns")]
        if not drawn:
            continue
        plot(drawn, picture)
        tables[mark] = table(tasks, DIGITS.get(mark, 0))
    write_tables(PAGE, tables)


if __name__ == "__main__":
    main()
