"""What a dashboard is made of, and its form in Grafana 11's JSON (the types of ``@grafana/schema``).

Only what our dashboards use: stats, graphs and tables, in titled rows, on one Prometheus data source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH = 24  # Grafana's grid.
_METRIC = re.compile(r"\b(?:crossborder_\w+|process_\w+|up\b|ALERTS\b)(\{)?")


def of_instance(expr: str) -> str:
    """``expr`` with every metric restricted to the learner that is chosen above the dashboard.

    >>> of_instance('crossborder_record{key="loss"} / up')
    'crossborder_record{instance="$instance",key="loss"} / up{instance="$instance"}'
    """
    return _METRIC.sub(
        lambda found: found[0].rstrip("{") + '{instance="$instance"' + ("," if found[1] else "}"),
        expr,
    )


@dataclass(frozen=True)
class Panel:
    """One question, answered by PromQL.

    Args:
        title: what is shown.
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
        """What is asked of Prometheus, Grafana's variables still in it."""
        return [of_instance(expr) for expr in self.series.values()]

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel at a place of the grid."""
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
    """One number that says by its colour whether it is well.

    Args:
        steps: values from which a colour holds, ascending; below the first it is ``base``.
        base: the colour to begin with.
        show: ``value``, or ``name`` for the legend of a metric whose labels are what it says.
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
    """Values over time; ``stacked`` where the series are parts of a whole."""

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
    """A row for each value of the label ``key``, a column for each series.

    Args:
        key: the label.
        units: units of columns that are not in ``unit``, by legend.
    """

    key: str = ""
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
        wanted = [self.key, *names]
        return [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": wanted}}},
            {"id": "organize", "options": {"indexByName": {n: i for i, n in enumerate(wanted)}, "renameByName": names}},
        ]


@dataclass(frozen=True)
class Row:
    """Panels under one heading, placed from left to right."""

    title: str
    panels: tuple[Panel, ...]

    def places(self, top: int) -> Iterator[tuple[Panel, int, int]]:
        """Each panel with its x and y below ``top``; those of one row are of one height."""
        x, y = 0, top
        for panel in self.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + panel.height
            yield panel, x, y
            x += panel.width


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard, of the values a label has; ``several`` may be taken, and all are at first."""

    name: str
    label: str
    values: str
    several: bool = False

    def json(self) -> Json:
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": {"query": self.values, "refId": self.name, "qryType": 1},
            "refresh": 2,
            "sort": 3 if self.several else 1,
            "multi": self.several,
            "includeAll": self.several,
            **({"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}} if self.several else {}),
        }


INSTANCE = Variable("instance", "Learner", 'label_values(up{job="trainer"}, instance)')
ACTOR = Variable(
    "actor", "Actor", 'label_values(crossborder_actor_last_seen_seconds{instance="$instance"}, actor)', True
)


@dataclass(frozen=True)
class Dashboard:
    """One page; the first row says at a glance whether it is well."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = (INSTANCE,)

    def panels(self) -> list[Panel]:
        """All of them, from the top."""
        return [panel for row in self.rows for panel in row.panels]

    def json(self) -> Json:
        """The dashboard as Grafana reads it from a file."""
        return {
            "uid": self.uid,
            "title": f"crossborder / {self.title}",
            "description": self.description,
            "tags": ["crossborder"],
            "schemaVersion": 41,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "5s",
            "time": {"from": "now-30m", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [variable.json() for variable in self.variables]},
            "annotations": {"list": [_alerts()]},
            "links": [_links()],
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[Json]:
        number, y = 1, 0
        for row in self.rows:
            grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
            yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid, "panels": []}
            for panel, x, top in row.places(y + 1):
                number += 1
                yield panel.json(number, x, top)
                y = top + panel.height
            number += 1


def _alerts() -> Json:
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "target": {"refId": "Alerts", "expr": of_instance('ALERTS{alertstate="firing"}')},
        "titleFormat": "{{alertname}}",
    }


def _links() -> Json:
    return {
        "type": "dashboards",
        "title": "crossborder",
        "tags": ["crossborder"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
