"""Grafana dashboards as readable Python: ``python -m dashboards`` writes docker/grafana/dashboards/*.json."""

from __future__ import annotations

from dashboards.fleet import FLEET
from dashboards.flow import FLOW
from dashboards.health import HEALTH
from dashboards.training import TRAINING

DASHBOARDS = (TRAINING, FLOW, FLEET, HEALTH)
