"""The manifests and units are valid and restricted, and name what the programs and the rules name."""

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

from actor.commands.actor_worker import parser as actor_parser
from crossborder.certificates.authority import FOR_ACTORS, FOR_LEARNER
from crossborder.inspecting.crossborder_health import parser as health_parser
from crossborder.serving.policy_server import parser as serving_parser
from deploy.__main__ import GENERATED
from learner.commands.learner_server import parser as learner_parser
from tests.conftest import PATIENCE, ROOT

DEPLOY = ROOT / "deploy"
QUICKLY = yaml.CSafeLoader
"""Reads YAML as PyYAML's own parser does, in a tenth of the time: every test process reads all manifests."""
KUBERNETES = "1.31.0"
OVERLAYS = ["base", *(f"overlays/{path.name}" for path in sorted((DEPLOY / "overlays").iterdir()))]
OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds of the Prometheus Operator and of KEDA, which Kubernetes' own schemas do not know."""

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="not installed: kubectl")


def documents(folder: str) -> list[dict[str, Any]]:
    """The resources that the files of a folder hold, as they are written."""
    files = [path for path in sorted((DEPLOY / folder).glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [document for path in files for document in yaml.load_all(path.read_text(), QUICKLY)]


def kustomized(folder: str) -> list[dict[str, Any]]:
    """The resources as a cluster would get them."""
    command = ["kubectl", "kustomize", str(DEPLOY / folder)]
    environment = {**os.environ, "KUBECONFIG": "/dev/null"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, QUICKLY))


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
FRONT = documents("components/front")
SERVING = find("Deployment", "serving", documents("components/serving"))
COMPONENTS = [
    document for name in ("monitoring", "autoscaler", "job", "front") for document in documents(f"components/{name}")
]
LEARNER, ACTOR = find("StatefulSet", "learner", BASE), find("Deployment", "actor", BASE)


KNOWN = [document for document in [*BASE, *COMPONENTS] if document["kind"] not in OPERATORS]


@pytest.mark.parametrize("document", KNOWN, ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_a_resource_is_valid_and_has_no_field_that_kubernetes_does_not_know(document: dict[str, Any]) -> None:
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


@needs_kubectl
def test_behind_the_front_actors_reach_the_front_alone_and_it_alone_reaches_the_learner() -> None:
    found = kustomized("overlays/front")
    assert pod_of(find("Deployment", "actor", found))[1]["env"] == [{"name": "LEARNER", "value": "front"}]
    learner_parser().parse_args(pod_of(find("StatefulSet", "learner", found))[1]["args"])

    def peers(policy: str, direction: str, end: str) -> dict[str, str]:
        (peer,) = find("NetworkPolicy", policy, found)["spec"][direction][0][end]
        return dict(peer["podSelector"]["matchLabels"])

    name = "app.kubernetes.io/name"
    assert peers("actor", "egress", "to") == {name: "front"}
    assert peers("front", "ingress", "from") == {name: "actor"}
    assert peers("front", "egress", "to") == {name: "learner"}
    assert peers("learner", "ingress", "from") == {name: "front"}
    limits = pod_of(find("StatefulSet", "learner", found))[1]["args"][-3:]
    composed = yaml.safe_load((ROOT / "docker/docker-compose.front.yml").read_text())["services"]
    assert limits == composed["learner"]["command"][-3:]


@pytest.mark.parametrize(
    "workload",
    [LEARNER, ACTOR, find("Deployment", "front", FRONT), SERVING],
    ids=["learner", "actor", "front", "serving"],
)
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


def test_an_acting_service_takes_its_arguments_and_its_ports_are_those_of_its_service() -> None:
    _, container = pod_of(SERVING)
    serving_parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for option, port in (("--listen", ports["grpc"]), ("--metrics", ports["metrics"])):
        assert f"{option}=0.0.0.0:{port}" in container["args"]
    service = find("Service", "serving", documents("components/serving"))["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    assert service["selector"] == SERVING["spec"]["selector"]["matchLabels"]
    command, *arguments = container["readinessProbe"]["exec"]["command"]
    assert command == "crossborder-health"
    health_parser().parse_args(arguments)


def test_the_learner_answers_admins_and_only_it_has_their_token() -> None:
    assert "--set=server.admin_token_file=certs/admin.token" in pod_of(LEARNER)[1]["args"]
    guide = (ROOT / "docs/operations.md").read_text()
    for workload, secret, handed_out, files in (
        (LEARNER, "learner-certs", "for-learner", FOR_LEARNER),
        (ACTOR, "actor-certs", "for-actors", FOR_ACTORS),
    ):
        spec, container = pod_of(workload)
        assert [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume] == [secret]
        assert f"create secret generic {secret} --from-file={handed_out}\n" in guide
        assert {*re.findall(r"certs/([a-z.]+)", " ".join(container["args"]))} <= {*files}


def test_ports_are_named_the_same_everywhere() -> None:
    ports = {port["name"] for port in pod_of(LEARNER)[1]["ports"]}
    service = find("Service", "learner", BASE)["spec"]["ports"]
    assert {port["name"] for port in service} == {port["targetPort"] for port in service} == ports
    monitored = find("ServiceMonitor", "learner", MONITORING)["spec"]["endpoints"]
    jobs = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert {one["port"] for one in monitored} == ports - {"grpc"}
    of_learner = {job["job_name"] for job in jobs} - {"crossborder-serving"}
    assert of_learner == {f"crossborder-{one['port']}" for one in monitored}
    assert all(one["relabelings"][0]["replacement"] == "crossborder-$1" for one in monitored)
    allowed = find("NetworkPolicy", "learner-metrics", MONITORING)["spec"]["ingress"][0]["ports"]
    assert {port["port"] for port in allowed} == ports - {"grpc"}


@pytest.mark.parametrize("path", GENERATED)
def test_a_generated_manifest_is_what_its_sources_say(path: str) -> None:
    assert list(yaml.safe_load_all((DEPLOY / path).read_text())) == GENERATED[path]()


@needs_kubectl
def test_the_job_overlay_runs_the_same_pods_to_completion() -> None:
    found = kustomized("overlays/job")
    assert {one["kind"] for one in found}.isdisjoint({"StatefulSet", "Deployment"})
    for name, workload in (("learner", LEARNER), ("actor", ACTOR)):
        job = find("Job", name, found)["spec"]
        assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
        assert job["template"]["spec"]["containers"] == [pod_of(workload)[1]]
    volumes = {volume["name"]: volume for volume in pod_of(find("Job", "learner", found))[0]["volumes"]}
    assert find("PersistentVolumeClaim", volumes["runs"]["persistentVolumeClaim"]["claimName"], found)


@needs_kubectl
def test_two_runs_in_a_namespace_share_neither_names_nor_pods() -> None:
    named = kustomized("overlays/named")
    service, actor = find("Service", "first-learner", named), find("Deployment", "first-actor", named)
    (variable,) = pod_of(actor)[1]["env"]
    assert variable == {"name": "LEARNER", "value": service["metadata"]["name"]}
    selectors = [service["spec"]["selector"], actor["spec"]["selector"]["matchLabels"]]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in named if one["kind"] == "PodDisruptionBudget"]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in named if one["kind"] == "NetworkPolicy"]
    assert len(selectors) == 6
    assert all(selector["app.kubernetes.io/instance"] == "first" for selector in selectors)
    theirs = {(one["kind"], one["metadata"]["name"]) for one in named if one["kind"] != "Namespace"}
    assert theirs.isdisjoint({(one["kind"], one["metadata"]["name"]) for one in kustomized("base")})


def test_every_pod_is_within_a_disruption_budget_and_actors_are_spread_over_the_nodes() -> None:
    budgets = [one["spec"]["selector"]["matchLabels"] for one in BASE if one["kind"] == "PodDisruptionBudget"]
    assert budgets == [workload["spec"]["selector"]["matchLabels"] for workload in (LEARNER, ACTOR)]
    (spread,) = pod_of(ACTOR)[0]["topologySpreadConstraints"]
    assert spread["labelSelector"] == ACTOR["spec"]["selector"]


def test_keda_asks_for_the_metric_of_this_namespace_and_this_learner() -> None:
    (scaled,) = documents("components/keda")
    (trigger,) = scaled["spec"]["triggers"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == ACTOR["metadata"]["name"]
    service = find("Service", "learner", BASE)["metadata"]["name"]
    assert f'crossborder:actor_demand{{namespace="crossborder",service="{service}"}}' in trigger["metadata"]["query"]


def test_grafanas_sidecar_finds_every_dashboard() -> None:
    maps = [one for one in MONITORING if one["kind"] == "ConfigMap"]
    assert len(maps) == len(list((ROOT / "docker/grafana/dashboards").glob("*.json")))
    assert all(one["metadata"]["labels"] == {"grafana_dashboard": "1"} for one in maps)


def test_actors_are_scaled_by_a_metric_that_a_rule_records() -> None:
    spec = find("HorizontalPodAutoscaler", "actor", documents("components/autoscaler"))["spec"]
    assert spec["scaleTargetRef"]["name"] == ACTOR["metadata"]["name"]
    (metric,) = spec["metrics"]
    (group,) = yaml.safe_load((ROOT / "docker/prometheus/scaling.yml").read_text())["groups"]
    recorded = {rule["record"].replace(":", "_") for rule in group["rules"]}
    assert metric["external"]["metric"]["name"] in recorded


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_program_with_arguments_that_it_takes(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text().replace("\\\n", ""), re.MULTILINE)
    program = shlex.split(line)[0]
    parsers = {"learner-server": learner_parser, "actor-worker": actor_parser, "policy-server": serving_parser}
    # systemd splits what has no braces.
    options = {"${ACTORS}": "16", "$OPTIONS": "--allow my_env", "$SOURCE": "--learner=gpu-host:50051"}
    for variable, value in options.items():
        line = line.replace(variable, value)
    parsers[Path(program).name]().parse_args(shlex.split(line)[1:])


def test_the_learners_unit_has_descriptors_for_its_connections_and_answers_admins() -> None:
    unit = (DEPLOY / "systemd/crossborder-learner.service").read_text()
    assert "\nLimitNOFILE=65536\n" in unit
    assert "--set=server.admin_token_file=/etc/crossborder/admin.token" in unit
