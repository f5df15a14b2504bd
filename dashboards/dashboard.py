"""Dashboards as Grafana reads them: rows of panels on its grid, and the variables above them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.panels import DATASOURCE, WIDTH, Json, Panel, of_instance


@dataclass(frozen=True)
class Row:
    """Panels under one heading, placed from left to right."""

    title: str
    panels: tuple[Panel, ...]

    def places(self, top: int) -> Iterator[tuple[Panel, int, int]]:
        """Each panel with its x and y in the grid, from y = ``top`` on; the panels of a row have the same height."""
        x, y = 0, top
        for panel in self.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + panel.height
            yield panel, x, y
            x += panel.width


@dataclass(frozen=True)
class Variable:
    """A menu above the dashboard with the values of a label. With ``several``, a user may choose many or all."""

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


INSTANCE = Variable("instance", "Learner", 'label_values(up{job="crossborder-trainer"}, instance)')
ACTOR = Variable(
    "actor", "Actor", 'label_values(crossborder_actor_last_seen_seconds{instance="$instance"}, actor)', True
)


@dataclass(frozen=True)
class Dashboard:
    """One page; its first row says at a glance whether all is well."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = (INSTANCE,)

    def panels(self) -> list[Panel]:
        """All panels, from the top."""
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
    """The annotation that marks firing alerts on every graph."""
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "target": {"refId": "Alerts", "expr": of_instance('ALERTS{alertstate="firing"}')},
        "titleFormat": "{{alertname}}",
    }


def _links() -> Json:
    """The menu with the other dashboards."""
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
