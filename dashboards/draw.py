"""Draws the dashboards from a Prometheus: ``python -m dashboards.draw http://127.0.0.1:9090 docs/images 600``.

matplotlib draws the pictures, with Grafana's grid and the panels' own expressions, titles and units.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dashboards import DASHBOARDS
from dashboards.dashboard import Dashboard
from dashboards.panels import WIDTH, Graph, Panel, Stat, Table

Series = list[tuple[dict[str, str], list[tuple[float, float]]]]

_CELL = (0.62, 0.3)  # Inches.
_COLORS = {"green": "#3d9950", "yellow": "#e0a800", "red": "#d0342c", "text": "#f0f0f0"}
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIXES = {"s": " s", "ops": "/s", "Bps": "B/s", "bytes": "B"}


class Source:
    """A Prometheus that answers Grafana's queries. A series has labels and points (seconds before the end, value).

    Args:
        url: of the Prometheus.
        seconds: how far back the pictures go.
        variables: the values of Grafana's variables, by name.
    """

    def __init__(self, url: str, seconds: int, variables: Mapping[str, str]) -> None:
        self._url, self._seconds, self._variables = url, seconds, variables
        self._end = time.time()

    def now(self, expr: str) -> Series:
        """Query the newest point of each series."""
        found = self._ask("query", expr, time=self._end)
        return [(one["metric"], [(0.0, float(one["value"][1]))]) for one in found]

    def past(self, expr: str) -> Series:
        """Query each series with about 300 points."""
        step = max(1, self._seconds // 300)
        found = self._ask("query_range", expr, start=self._end - self._seconds, end=self._end, step=step)
        return [(one["metric"], [(at - self._end, float(value)) for at, value in one["values"]]) for one in found]

    def _ask(self, how: str, expr: str, **at: float) -> list[dict[str, Any]]:
        for name, value in self._variables.items():
            expr = expr.replace(name, value)
        url = f"{self._url}/api/v1/{how}?{urllib.parse.urlencode({'query': expr, **at})}"
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - the operator's own server
            found: list[dict[str, Any]] = json.loads(response.read())["data"]["result"]
        return found


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit and three digits: ``1.23 kB/s``."""
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    suffix = _SUFFIXES.get(unit, "")
    if unit in {"s", "none"}:
        return f"{value:.4g}{suffix}"
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if abs(value) >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}{suffix}".rstrip()


def fill_legend(legend: str, labels: Mapping[str, str]) -> str:
    """Fill the values of labels into a legend such as ``{{actor}}``."""
    for label, value in labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def draw_stat(panel: Stat, axes: Axes, source: Source) -> None:
    """Draw the newest value on the colour of its threshold."""
    ((legend, expr),) = zip(panel.series, panel.expressions(), strict=True)
    found = source.now(expr)
    color, text = panel.base, "no data"
    if found:
        labels, points = found[0]
        value = points[-1][1]
        color = next((name for least, name in reversed(panel.steps) if value >= least), panel.base)
        text = fill_legend(legend, labels) if panel.show == "name" else format_value(value, panel.unit)
    axes.set_facecolor(_COLORS[color])
    ink = "black" if color == "text" else "white"
    axes.text(0.5, 0.45, text[:16], ha="center", va="center", fontsize=15, color=ink, transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])


def draw_graph(panel: Graph, axes: Axes, source: Source) -> None:
    """Draw each series as a line, or in a stacked panel as an area on top of the series before it."""
    lines: list[tuple[str, list[tuple[float, float]]]] = [
        (fill_legend(legend, labels), points)
        for legend, expr in zip(panel.series, panel.expressions(), strict=True)
        for labels, points in source.past(expr)
    ]
    stack: dict[float, float] = {}  # The height so far at each point of time.
    for label, points in lines:
        times = [at for at, _ in points]
        if panel.stacked:
            bottom = [stack.get(at, 0.0) for at in times]
            top = [low + value for low, (_, value) in zip(bottom, points, strict=True)]
            axes.fill_between(times, bottom, top, alpha=0.6, label=label)
            stack |= dict(zip(times, top, strict=True))
        else:
            axes.plot(times, [value for _, value in points], linewidth=1, label=label)
    if lines:
        _decorate(axes, panel.unit)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no data", ha="center", va="center", transform=axes.transAxes)


def _decorate(axes: Axes, unit: str) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f} s"))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 0.98), ncols=6, frameon=False)


def draw_table(panel: Table, axes: Axes, source: Source) -> None:
    """Draw a row for each set of values of the panel's labels."""
    units = panel.units or {}
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for legend, expr in zip(panel.series, panel.expressions(), strict=True):
        for labels, ((_, value),) in source.now(expr):
            cell = format_value(value, units.get(legend, panel.unit))
            rows.setdefault(tuple(labels.get(key, "") for key in panel.keys), {})[legend] = cell
    columns = list(panel.series)
    cells = [[*key, *(row.get(column, "") for column in columns)] for key, row in sorted(rows.items())]
    headings = [*panel.keys, *columns]
    axes.axis("off")
    table = axes.table(cells or [["no data"] * len(headings)], colLabels=headings, loc="upper center")
    table.set_fontsize(9)
    table.scale(1, 1.4)


_DRAW: Mapping[type[Panel], Callable[[Any, Axes, Source], None]] = {
    Stat: draw_stat,
    Graph: draw_graph,
    Table: draw_table,
}


def draw(dashboard: Dashboard, source: Source) -> Figure:
    """Draw a dashboard with each panel at its place in Grafana's grid."""
    places = [
        panel["gridPos"] | {"title": panel["title"], "row": panel["type"] == "row"}
        for panel in dashboard.json()["panels"]
    ]
    height = max(place["y"] + place["h"] for place in places)
    figure = Figure(figsize=(WIDTH * _CELL[0], (height + 1) * _CELL[1]))
    panels = iter(dashboard.panels())
    for place in places:
        if place["row"]:
            figure.text(0.01, 1 - (place["y"] + 1.6) / (height + 1), place["title"], fontsize=12, weight="bold")
            continue
        panel = next(panels)
        axes = figure.add_axes(_axes_box(place, height + 1))
        axes.set_title(panel.title, fontsize=9, loc="left", pad=3)
        _DRAW[type(panel)](panel, axes, source)
    figure.text(0.01, 1 - 0.7 / (height + 1), f"crossborder / {dashboard.title}", fontsize=14)
    return figure


def _axes_box(place: Mapping[str, int], height: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a panel's axes in the figure, with room for title and ticks around them."""
    left, right = place["x"] + (1.4 if place["w"] > 4 else 0.2), place["x"] + place["w"] - 0.2
    top, bottom = place["y"] + 1 + 1.3, place["y"] + 1 + place["h"] - (1.0 if place["h"] > 4 else 0.2)
    return (left / WIDTH, 1 - bottom / height, (right - left) / WIDTH, (bottom - top) / height)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", help="its URL")
    parser.add_argument("folder", type=Path, help="the directory for the pictures")
    parser.add_argument("seconds", type=int, help="how far back")
    parser.add_argument("--instance", default="learner", help="the learner")
    chosen = parser.parse_args(arguments)
    variables = {"$instance": chosen.instance, "$actor": ".*", "$__rate_interval": "20s"}
    source = Source(chosen.prometheus, chosen.seconds, variables)
    for dashboard in DASHBOARDS:
        draw(dashboard, source).savefig(chosen.folder / f"{dashboard.uid}.png", dpi=80)


if __name__ == "__main__":
    main()
