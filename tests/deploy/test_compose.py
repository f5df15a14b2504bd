"""docker-compose.yml and its overlays ask for what there is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from actor.cli import parser as actor_parser
from learner.certs_cli import parser as certs_parser
from learner.cli import parser as learner_parser
from tests.conftest import ROOT


def services(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / path).read_text())["services"])


SERVICES = services("docker-compose.yml")
OVERLAYS = {path: services(path) for path in ("docker/docker-compose.gpu.yml", "docker/docker-compose.dev.yml")}
PARSERS = {"learner": learner_parser, "actor": actor_parser, "certs": certs_parser}


@pytest.mark.parametrize("name", PARSERS)
def test_each_command_is_one_that_the_program_takes(name: str) -> None:
    PARSERS[name]().parse_args(SERVICES[name]["command"])


def test_the_gpu_overlay_adds_a_device_to_the_learners_command_and_nothing_else() -> None:
    added = OVERLAYS["docker/docker-compose.gpu.yml"]["learner"]["command"]
    assert added == [*SERVICES["learner"]["command"], "--set=trainer.device=cuda"]


@pytest.mark.parametrize("path", OVERLAYS)
def test_an_overlay_changes_services_that_exist(path: str) -> None:
    assert set(OVERLAYS[path]) <= set(SERVICES)


def test_every_service_is_hardened_and_only_prometheus_and_grafana_are_published_on_this_host_alone() -> None:
    for service in SERVICES.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"prometheus", "grafana"}
