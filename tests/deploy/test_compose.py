"""docker-compose.yml and its overlays ask for what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from actor.commands.actor_worker import parser as actor_parser
from common.config.server_config import ServerConfig
from crossborder.certificates.authority import FOR_ACTORS, FOR_LEARNER
from crossborder.certificates.crossborder_certs import parser as certs_parser
from crossborder.serving.policy_server import parser as serving_parser
from learner.commands.learner_server import parser as learner_parser
from learner.records.beside import CLOSE_SECONDS
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


def test_behind_the_front_the_learner_is_reached_by_the_front_and_prometheus_alone() -> None:
    overlay = services("docker/docker-compose.front.yml")
    networks = {name: set(overlay.get(name, {}).get("networks", ["default"])) for name in {*SERVICES, *overlay}}
    assert {name for name, joined in networks.items() if joined & networks["learner"]} == {
        "learner",
        "front",
        "prometheus",
    }
    assert "ports" not in overlay["learner"]
    front = overlay["front"]
    assert (front["read_only"], front["cap_drop"]) == (True, ["ALL"])
    assert front["ports"] == ["${FRONT:-127.0.0.1:50051}:50051"]


def test_behind_the_front_one_address_may_use_the_limits_of_all_addresses_together() -> None:
    overlay = services("docker/docker-compose.front.yml")
    for name, parser in PARSERS.items():
        parser().parse_args(overlay[name]["command"])
    command = overlay["learner"]["command"]
    size = len(SERVICES["learner"]["command"])
    assert command[:size] == SERVICES["learner"]["command"]
    assert command[size:] == [f"--set=server.max_address_actors={ServerConfig().max_actors}"]
    assert ServerConfig(max_address_actors=ServerConfig().max_actors).may_share_address


def test_an_acting_service_is_hardened_and_reached_from_this_host_alone() -> None:
    overlay = services("docker/docker-compose.serving.yml")
    certs_parser().parse_args(overlay["certs"]["command"])
    serving = overlay["serving"]
    serving_parser().parse_args(serving["command"])
    assert (serving["read_only"], serving["cap_drop"]) == (True, ["ALL"])
    assert serving["ports"] == ["${SERVING:-127.0.0.1:50060}:50060"]
    assert {*re.findall(r"=certs/([a-z.]+)", " ".join(serving["command"]))} <= {*FOR_LEARNER}


@pytest.mark.parametrize("path", OVERLAYS)
def test_an_overlay_changes_services_that_exist(path: str) -> None:
    assert set(OVERLAYS[path]) <= set(SERVICES)


def test_a_hanging_tracker_leaves_the_learner_most_of_its_time_to_end() -> None:
    assert int(SERVICES["learner"]["stop_grace_period"].removesuffix("s")) >= 2 * (
        CLOSE_SECONDS + ServerConfig().grace_seconds
    )


def test_every_service_is_hardened_and_only_prometheus_and_grafana_are_published_on_this_host_alone() -> None:
    for service in SERVICES.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"prometheus", "grafana"}


def mounts(service: str) -> dict[str, str]:
    """The volumes of a service by where it sees them."""
    return {place: volume for volume, place, *_ in (mount.split(":") for mount in SERVICES[service]["volumes"])}


def test_an_actor_sees_neither_the_authoritys_key_nor_the_admins_token_and_the_learner_not_the_key() -> None:
    arguments = certs_parser().parse_args(SERVICES["certs"]["command"])
    made = mounts("certs")
    for service, handed_out, files in (
        ("learner", arguments.for_learner, FOR_LEARNER),
        ("actor", arguments.for_actors, FOR_ACTORS),
    ):
        assert mounts(service)["/app/certs"] == made[f"/app/{handed_out}"]
        assert made[f"/app/{arguments.out}"] not in mounts(service).values()
        assert "ca.key" not in files
    assert not {"admin.token", "server.key"} & {*FOR_ACTORS}


def test_the_image_has_a_directory_of_its_user_for_each_volume_of_certificates() -> None:
    (line,) = re.findall(r"install --directory --owner=crossborder .*", (ROOT / "docker/Dockerfile").read_text())
    assert {*mounts("certs"), *mounts("learner")} <= {*line.split()}


def test_the_image_is_built_from_all_that_the_wheel_takes() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    taken = [Path(name) for name in (*wheel["packages"], *wheel["force-include"])]
    copied = [Path(name) for name in re.findall(r"^COPY (\w\S+) \S+$", (ROOT / "docker/Dockerfile").read_text(), re.M)]
    sent = [Path(name) for name in re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)]
    for path in taken:
        assert any(path.is_relative_to(place) for place in copied), f"the Dockerfile copies {path}"
        assert any(path.is_relative_to(place) for place in sent), f".dockerignore lets {path} through"


def test_commands_get_the_files_that_they_name() -> None:
    for service, files in (("learner", FOR_LEARNER), ("actor", FOR_ACTORS)):
        named = re.findall(r"certs/([a-z.]+)", " ".join(SERVICES[service]["command"]))
        assert {*named} <= {*files}


def test_status_is_answered_to_the_admins_token() -> None:
    assert "--set=server.admin_token_file=certs/admin.token" in SERVICES["learner"]["command"]
