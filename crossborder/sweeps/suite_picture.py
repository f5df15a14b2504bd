"""A suite as one picture: the curves of each task, the interquartile means, and the performance profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.data import Array
from crossborder.curves.bands import Band, bring_together
from crossborder.curves.learning_curve import Curve
from crossborder.curves.picture import draw_band, plain_style, save_figure
from crossborder.curves.statistics import performance_profile, summarize
from crossborder.sweeps.suite_config import SuiteConfig
from crossborder.sweeps.suite_results import Group, SuiteRun, shares
from learner.shared.drawing import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
"""The most panels beside one another."""


def draw_suite(suite: SuiteConfig, groups: Mapping[str, Group], path: Path) -> None:
    """Draw all agents that have a run.

    Raises:
        ConfigError: the file cannot be written.
    """
    colours = {agent: f"C{number}" for number, agent in enumerate(groups)}
    n_panels = len(suite.tasks) + 2
    n_columns = min(COLUMNS, n_panels)
    n_rows = -(-n_panels // n_columns)
    with plain_style():
        figure = Figure(figsize=(4.5 * n_columns, 3.5 * n_rows), layout="constrained")
        panels = [*figure.subplots(n_rows, n_columns, squeeze=False).flat]
        for task, panel in zip(suite.tasks, panels, strict=False):
            panel.set(title=task, xlabel="environment steps", ylabel="score")
            panel.locator_params(axis="x", nbins=4)  # Numbers of steps are long.
            for agent, group in groups.items():
                _draw_curves(panel, group[task], agent, colours[agent])
        *_, means, profiles = panels[:n_panels]
        means.set(title="interquartile mean over all tasks", xlabel="share of the range")
        profiles.set(
            title="performance profile", xlabel="share of the range", ylabel="share of runs that score at least this"
        )
        for agent, group in groups.items():
            if scores := shares(suite, group):
                _draw_totals(scores, means, profiles, agent, colours[agent])
        means.invert_yaxis()
        means.set_yticks([])  # The legend has the names.
        for panel in panels[:n_panels]:
            panel.grid(alpha=0.3)
        for panel in panels[n_panels:]:
            panel.set_axis_off()
        handles = [means.plot([], [], color=colour, label=agent)[0] for agent, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
        save_figure(figure, path)


def _draw_curves(panel: Axes, runs: Sequence[SuiteRun], agent: str, colour: str) -> None:
    """Draw single runs as a band, and a published mean as a dashed line; a mean of one point is a cross."""
    curves = [Curve(Path(f"{agent} {run.seed}"), *np.array(run.curve, np.float64).T) for run in runs if run.curve]
    if any(run.runs > 1 for run in runs):
        for curve in curves:
            panel.plot(curve.x, curve.y, color=colour, linestyle="--", marker="x" if len(curve.x) == 1 else "")
    elif curves:
        # A run that diverged keeps its last score; it may have ended before another run was scored first.
        draw_band(panel, bring_together(curves, hold=True), agent, colour)


def _draw_totals(scores: Sequence[Array], means: Axes, profiles: Axes, agent: str, colour: str) -> None:
    middle, low, high = summarize(scores)
    means.errorbar(middle, agent, xerr=[[middle - low], [high - middle]], color=colour, marker="o", capsize=4)
    thresholds = np.linspace(0.0, max(1.0, *map(np.max, scores)), 101)
    reached, least, most = performance_profile(scores, thresholds)
    draw_band(profiles, Band(thresholds, reached, least, most, sum(map(len, scores))), agent, colour)
