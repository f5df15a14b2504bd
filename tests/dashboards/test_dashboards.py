"""What is written in docker/grafana is whole, and is what docker-compose.yml mounts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dashboards.__main__ import FOLDER
from dashboards.panels import of_instance
from tests.conftest import ROOT

GRAFANA = ROOT / "docker" / "grafana"
WRITTEN: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
PANELS = [panel for dashboard in WRITTEN.values() for panel in dashboard["panels"] if panel["type"] != "row"]
DATASOURCE = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_every_panel_has_a_title_a_unit_a_description_and_the_provisioned_source() -> None:
    assert PANELS
    source = {"type": DATASOURCE["type"], "uid": DATASOURCE["uid"]}
    for panel in PANELS:
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(each["datasource"] == source for each in (panel, *panel["targets"])), panel["title"]


def test_every_expression_is_of_the_chosen_learner() -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert [each for each in expressions if 'instance="$instance"' not in each] == []


@pytest.mark.parametrize("dashboard", WRITTEN.values(), ids=WRITTEN)
def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("dashboard", WRITTEN.values(), ids=WRITTEN)
def test_the_first_row_is_stats_with_a_colour_that_says_whether_it_is_well(dashboard: dict[str, Any]) -> None:
    first = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] == 1]
    assert {panel["type"] for panel in first} == {"stat"}
    steps = [len(panel["fieldConfig"]["defaults"]["thresholds"]["steps"]) for panel in first]
    assert sum(count > 1 for count in steps) >= 3


def test_the_selector_joins_the_labels_an_expression_names() -> None:
    assert of_instance("sum(up)") == 'sum(up{instance="$instance"})'
    assert of_instance('crossborder_record{key="loss"}') == 'crossborder_record{instance="$instance",key="loss"}'
    assert of_instance("a_crossborder_like_name + group") == "a_crossborder_like_name + group"


@pytest.mark.parametrize("name", [path.name for path in FOLDER.glob("*.json")])
def test_the_page_shows_each_dashboard(name: str) -> None:
    picture = f"images/{name.removesuffix('.json')}.png"
    assert f"({picture})" in (ROOT / "docs" / "dashboards.md").read_text()
    assert (ROOT / "docs" / picture).is_file()


def test_grafana_finds_prometheus_and_the_dashboards_where_the_composition_has_them() -> None:
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["grafana"]["volumes"])
    assert mounts == {
        "grafana": "/var/lib/grafana",
        "./docker/grafana/provisioning": "/etc/grafana/provisioning",
        "./docker/grafana/dashboards": "/var/lib/grafana/dashboards",
    }
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/crossborder.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.removeprefix("/var/lib/grafana/dashboards/").removesuffix(".json") in WRITTEN
    host, port = DATASOURCE["url"].removeprefix("http://").split(":")
    assert host in COMPOSE
    assert [published.rpartition(":")[2] for published in COMPOSE[host]["ports"]] == [port]


def test_the_shortest_rate_grafana_draws_spans_several_scrapes() -> None:
    scraped = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert DATASOURCE["jsonData"]["timeInterval"] == scraped
