"""Panels with their PromQL, as Grafana 11 reads them (its types are in ``@grafana/schema``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH = 24  # Grafana's grid.
_METRIC = re.compile(r"\b(?:crossborder_\w+|process_\w+|up|ALERTS)\b(?!\{instance)(\{)?")


def of_instance(expr: str) -> str:
    """Restrict metrics to the learner that is chosen above the dashboard, unless they begin with ``{instance``.

    >>> of_instance('crossborder_record{key="loss"} / up')
    'crossborder_record{instance="$instance",key="loss"} / up{instance="$instance"}'
    """
    return _METRIC.sub(
        lambda found: found[0].rstrip("{") + '{instance="$instance"' + ("," if found[1] else "}"),
        expr,
    )


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        title: above the panel.
        description: how to read it, in a sentence or two; Grafana shows it on hover.
        unit: Grafana's id of the unit (``s``, ``bytes``, ``ops``, ``percentunit``, ``short``, ``none``).
        series: legend (may name labels, ``{{actor}}``) → expression, before ``of_instance``.
    """

    title: str
    description: str
    unit: str
    series: Mapping[str, str]

    kind: ClassVar[str]
    width: ClassVar[int]
    height: ClassVar[int]
    instant: ClassVar[bool]

    def expressions(self) -> list[str]:
        """The PromQL of each series, with Grafana's variables in it."""
        return [of_instance(expr) for expr in self.series.values()]

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel as Grafana reads it, with its id and its place in the grid."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(place, legend) for place, legend in enumerate(self.series)],
            "fieldConfig": {"defaults": {"unit": self.unit, **self._defaults()}, "overrides": self._overrides()},
            "options": self._options(),
            "transformations": self._transformations(),
        }

    def _target(self, place: int, legend: str) -> Json:
        return {
            "refId": chr(ord("A") + place),
            "datasource": DATASOURCE,
            "expr": of_instance(self.series[legend]),
            "legendFormat": legend,
            "instant": self.instant,
            "range": not self.instant,
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _defaults(self) -> Json:
        return {}

    def _overrides(self) -> list[Json]:
        return []

    def _options(self) -> Json:
        raise NotImplementedError

    def _transformations(self) -> list[Json]:
        return []


@dataclass(frozen=True)
class Stat(Panel):
    """One number on a colour that says whether all is well.

    Args:
        steps: the values from which each colour holds, ascending; below the first the colour is ``base``.
        base: the colour of the lowest values.
        show: ``value``; or ``name``, the legend, for a metric whose labels have the information.
    """

    base: str = "text"
    steps: tuple[tuple[float, str], ...] = ()
    show: str = "value"

    kind = "stat"
    width = 4
    height = 4
    instant = True

    def _defaults(self) -> Json:
        steps = [
            {"value": None, "color": self.base},
            *({"value": value, "color": color} for value, color in self.steps),
        ]
        return {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}

    def _options(self) -> Json:
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
            "colorMode": "background" if self.steps else "none",
            "graphMode": "none",
            "justifyMode": "auto",
            "textMode": self.show,
            "wideLayout": True,
            "orientation": "auto",
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }


@dataclass(frozen=True)
class Graph(Panel):
    """Values over time; ``stacked`` if the series are parts of a whole."""

    stacked: bool = False

    kind = "timeseries"
    width = 12
    height = 8
    instant = False

    def _defaults(self) -> Json:
        stacking = {"mode": "normal" if self.stacked else "none", "group": "A"}
        custom = {"lineWidth": 1, "fillOpacity": 40 if self.stacked else 5, "showPoints": "never", "stacking": stacking}
        return {"custom": custom, "color": {"mode": "palette-classic"}}

    def _options(self) -> Json:
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


@dataclass(frozen=True)
class Table(Panel):
    """A row for each set of values of the labels ``keys``, a column for each series.

    Args:
        keys: the labels, which every series must have.
        units: by legend, the units of columns whose unit is not ``unit``.
    """

    keys: tuple[str, ...] = ()
    units: Mapping[str, str] | None = None

    kind = "table"
    width = WIDTH
    height = 9
    instant = True

    def _column(self, place: int) -> str:
        return "Value" if len(self.series) == 1 else f"Value #{chr(ord('A') + place)}"

    def _overrides(self) -> list[Json]:
        units = self.units or {}
        return [
            {"matcher": {"id": "byName", "options": legend}, "properties": [{"id": "unit", "value": units[legend]}]}
            for legend in self.series
            if legend in units
        ]

    def _options(self) -> Json:
        return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "showTypeIcons": False}

    def _transformations(self) -> list[Json]:
        names = {self._column(place): legend for place, legend in enumerate(self.series)}
        wanted = [*self.keys, *names]
        return [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": wanted}}},
            {"id": "organize", "options": {"indexByName": {n: i for i, n in enumerate(wanted)}, "renameByName": names}},
        ]
