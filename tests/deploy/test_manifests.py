"""The manifests and units: valid, restricted, and of the same words as the programs and the rules they name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from actor.cli import parser as actor_parser
from actor.health_cli import parser as health_parser
from learner.cli import parser as learner_parser
from tests.conftest import PATIENCE, ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = "1.31.0"
OVERLAYS = ["base", *(f"overlays/{path.name}" for path in sorted((DEPLOY / "overlays").iterdir()))]
OPERATORS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus Operator, which Kubernetes' own schemas do not know."""

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="not installed: kubectl")


def documents(folder: str) -> list[dict[str, Any]]:
    """The resources that the files of a folder hold, as they are written."""
    files = [path for path in sorted((DEPLOY / folder).glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [document for path in files for document in yaml.safe_load_all(path.read_text())]


def kustomized(folder: str) -> list[dict[str, Any]]:
    """The resources as a cluster would get them."""
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    environment = {**os.environ, "KUBECONFIG": "/dev/null"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def find(kind: str, name: str, among: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [one for one in among if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(workload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec of its pods, and their one container."""
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


BASE = documents("base")
MONITORING = documents("components/monitoring")
LEARNER, ACTOR = find("StatefulSet", "learner", BASE), find("Deployment", "actor", BASE)


@pytest.mark.parametrize("document", [*BASE, *MONITORING], ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_a_resource_is_valid_and_has_no_field_that_kubernetes_does_not_know(document: dict[str, Any]) -> None:
    if document["kind"] not in OPERATORS:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_a_misspelt_field_would_be_seen() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**ACTOR, "spec": {**ACTOR["spec"], "replica": 3}}, KUBERNETES, strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_overlay_can_be_built_and_is_valid(overlay: str) -> None:
    for document in kustomized(overlay):
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "crossborder"
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


@needs_kubectl
def test_the_gpu_overlay_trains_on_one_gpu() -> None:
    _, container = pod_of(find("StatefulSet", "learner", kustomized("overlays/gpu")))
    assert container["image"] == "crossborder-learner:cuda"
    assert container["args"][-1] == "--set=trainer.device=cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@needs_kubectl
def test_where_actors_are_scaled_by_demand_nothing_else_says_how_many() -> None:
    assert "replicas" not in find("Deployment", "actor", kustomized("overlays/monitoring"))["spec"]


@pytest.mark.parametrize("workload", [LEARNER, ACTOR], ids=["learner", "actor"])
def test_pods_are_restricted_and_their_root_is_read_only(workload: dict[str, Any]) -> None:
    spec, container = pod_of(workload)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_programs_take_their_arguments_and_the_learner_its_probes() -> None:
    _, learner = pod_of(LEARNER)
    learner_parser().parse_args(learner["args"])
    actor_parser().parse_args(pod_of(ACTOR)[1]["args"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        command, *arguments = learner[probe]["exec"]["command"]
        assert command == "crossborder-health"
        health_parser().parse_args(arguments)


def test_ports_are_named_the_same_everywhere() -> None:
    ports = {port["name"] for port in pod_of(LEARNER)[1]["ports"]}
    service = find("Service", "learner", BASE)["spec"]["ports"]
    assert {port["name"] for port in service} == {port["targetPort"] for port in service} == ports
    monitored = find("ServiceMonitor", "learner", MONITORING)["spec"]["endpoints"]
    jobs = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert {one["port"] for one in monitored} == {job["job_name"] for job in jobs} == ports - {"grpc"}
    allowed = find("NetworkPolicy", "learner-metrics", MONITORING)["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in allowed} == ports - {"grpc"}


def test_the_operators_rules_are_those_of_the_composition() -> None:
    shipped = [
        yaml.safe_load((ROOT / "docker/prometheus" / name).read_text()) for name in ("alerts.yml", "scaling.yml")
    ]
    rules = find("PrometheusRule", "crossborder", MONITORING)["spec"]
    assert rules == {"groups": [group for file in shipped for group in file["groups"]]}


def test_actors_are_scaled_by_a_metric_that_a_rule_records() -> None:
    spec = find("HorizontalPodAutoscaler", "actor", MONITORING)["spec"]
    assert spec["scaleTargetRef"]["name"] == ACTOR["metadata"]["name"]
    (metric,) = spec["metrics"]
    (group,) = yaml.safe_load((ROOT / "docker/prometheus/scaling.yml").read_text())["groups"]
    recorded = {rule["record"].replace(":", "_") for rule in group["rules"]}
    assert metric["external"]["metric"]["name"] in recorded


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_program_with_arguments_that_it_takes(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text().replace("\\\n", ""), re.MULTILINE)
    program, *arguments = shlex.split(line)
    parser = {"learner-server": learner_parser, "actor-worker": actor_parser}[Path(program).name]()
    parser.parse_args([argument.replace("${ACTORS}", "16") for argument in arguments])
