"""The shipped Prometheus configuration holds, and a fault reaches whoever is on call."""

from __future__ import annotations

import queue
import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, ROOT, endpoints, wait_for
from tests.dashboards.stack import SHIPPED, alertmanager, needs, prometheus, webhook
from tests.learner.ingest.by_hand import Client, Talk

RULES: list[dict[str, Any]] = yaml.load((SHIPPED / "alerts.yml").read_text(), yaml.CSafeLoader)["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]


def ends_well(*command: str) -> None:
    done = subprocess.run(command, cwd=SHIPPED, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs("promtool")
def test_promtool_accepts_the_configuration() -> None:
    ends_well("promtool", "check", "config", "prometheus.yml")


@needs("promtool")
def test_actor_demand_is_above_1_where_the_trainer_waits_and_below_where_actors_do() -> None:
    ends_well("promtool", "test", "rules", "scaling_test.yml")


@needs("promtool")
def test_each_alert_fires_when_it_must_and_only_then() -> None:
    ends_well("promtool", "test", "rules", "alerts_test.yml")


def test_each_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load((SHIPPED / "alerts_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(NAMES)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(NAMES)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_each_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["for"]
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
    assert rule["alert"] in headings


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_the_page_of_metrics_names_each_alert_at_the_metrics_it_watches(rule: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for metric in set(re.findall(r"crossborder_\w+", rule["expr"])):
        named = re.search(rf"^\| `{metric.removesuffix('_bucket')}[`{{].*\| (.*) \|$", page, re.MULTILINE)
        assert named
        assert rule["alert"] in named[1]


def reach(alerts: queue.Queue[dict[str, Any]], *names: str) -> dict[str, dict[str, str]]:
    """The labels of the firing alerts of these names, once all have reached the webhook."""
    reached: dict[str, dict[str, str]] = {}
    while not set(names) <= set(reached):
        alert = alerts.get(timeout=PATIENCE)
        if alert["status"] == "firing":
            reached[alert["labels"]["alertname"]] = alert["labels"]
    return reached


@needs("prometheus", "prometheus-alertmanager")
def test_a_refused_batch_and_the_last_actors_end_reach_a_webhook(host: LearnerServer, tmp_path: Path) -> None:
    client = Client(host)
    client.join()
    talk = Talk(client.stub)
    talk.say(client.batch(1))
    with (
        webhook() as (url, alerts),
        alertmanager(tmp_path, url) as notified,
        prometheus(tmp_path, endpoints(tmp_path / "run"), hold="1s", alertmanager=notified) as asked,
    ):
        wait_for(lambda: asked.values('crossborder_actors{state="online"}') == [1], "the actor is seen")
        with pytest.raises(grpc.RpcError):
            talk.say(client.batch(2, schema_hash=1))
        client.channel.close()
        reached = reach(alerts, "BatchesRefused", "NoActors")
    assert reached["BatchesRefused"]["reason"] == "schema"
    assert (reached["NoActors"]["instance"], reached["NoActors"]["severity"]) == ("learner", "critical")
