"""The whole composition in containers: it comes up, learns, mends itself, and Prometheus agrees at each step.

One story, told in order. Needs images (``make images``) and an engine: ``make compose-test``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import yaml

from common.errors import AuthenticationError, LearnerUnreachableError
from dashboards import DASHBOARDS
from dashboards.dashboard import Dashboard
from tests.compose.composition import NETWORK, PATIENCE, Composition, composed, docker, exit_code, kill_process
from tests.conftest import ROOT, merged, wait_for
from tests.dashboards.test_live import EMPTY, VARIABLES, at_once, played

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]

CARTPOLE: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "cartpole.yaml").read_text())
ENDLESS = {
    "max_opts": 10_000_000,
    "target_score": None,
    "checkpoint_seconds": 2.0,
    "record_interval": 100,
    "save_interval": 1000,
}
SEEN = {
    "learner": ["actor.token", "admin.token", "ca.pem", "server.key", "server.pem"],
    "actor": ["actor.key", "actor.pem", "actor.token", "ca.pem"],
}
"""The files of certificates and tokens in each container."""
BEGUN = 'process_start_time_seconds{job="crossborder-ingest"}'
SHIPPED = {**VARIABLES, "$__rate_interval": "20s"}  # Four scrapes.


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """CartPole without an end, as a whole composition."""
    rate = {"rate_hz": 500}  # Some panels are those of robots.
    mirror = {"mirror": "file:///app/runs/mirror"}  # Others are those of a mirror.
    changes = {"env": rate, "trainer": ENDLESS, "evaluator": {"episodes": 1}, "storage": mirror}
    config = merged(CARTPOLE, changes)
    with composed(tmp_path_factory.mktemp("compose"), config) as running:
        yield running


def wait(condition: Callable[[], object], what: str) -> None:
    wait_for(condition, what, PATIENCE)


def online(system: Composition) -> float | None:
    return system.value('crossborder_actors{state="online"}')


def wait_for_another_life(system: Composition, begun: float | None) -> None:
    """Until Prometheus has seen a learner host that began after ``begun``, and all four actors with it."""
    wait(lambda: (system.value(BEGUN) or 0) > (begun or 0), "Prometheus sees another ingest")
    wait(lambda: online(system) == 4, "four actors are online again")


@pytest.mark.parametrize("image", ["crossborder-learner", "crossborder-actor"])
def test_an_image_has_no_pip_and_its_user_no_rights(image: str) -> None:
    ask = ["docker", "run", "--rm", "--network=none", "--entrypoint=python", image]
    assert exit_code(*ask, "-m", "pip", "--version") != 0
    assert docker(*ask[1:], "-c", "import os; print(os.getuid(), os.access('/app', os.W_OK))") == "10001 False"


def test_the_learner_gets_healthy_and_two_actors_join(system: Composition) -> None:
    assert system.is_healthy()
    wait(lambda: online(system) == 2, "two actors are online")
    assert system.value("min(up)") == 1


def test_the_root_file_systems_are_read_only_and_nothing_is_privileged(system: Composition) -> None:
    for container in (*system.containers("learner"), *system.containers("actor")):
        (found,) = json.loads(docker("inspect", container))
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert found["HostConfig"]["CapDrop"] == ["ALL"]
        assert exit_code("docker", "exec", container, "touch", "/app/file") != 0
        assert exit_code("docker", "exec", container, "touch", "/tmp/file") == 0  # noqa: S108  the container's own


def test_nobody_joins_without_a_token_or_in_the_clear(system: Composition) -> None:
    actor = system.containers("actor")[0]
    join = ["docker", "exec", actor, "actor-worker", "--learner=learner:50051", "--patience=3"]
    assert exit_code(*join, "--ca=certs/ca.pem") == AuthenticationError.exit_code
    assert exit_code(*join, "--insecure") == LearnerUnreachableError.exit_code
    wait(lambda: system.value("crossborder_unauthenticated_calls_total"), "the refused call is counted")


def test_an_actors_container_sees_neither_the_authoritys_key_nor_the_admins_token(system: Composition) -> None:
    seen = {service: docker("exec", system.containers(service)[0], "ls", "certs").split() for service in SEEN}
    assert seen == SEEN


def test_status_is_told_in_the_learners_container(system: Composition) -> None:
    (learner,) = system.containers("learner")
    trust = ["--ca=certs/ca.pem", "--token-file=certs/admin.token"]
    told = docker("exec", learner, "learner-server", "status", "--learner=localhost:50051", *trust, "--json")
    assert {actor["name"] for actor in json.loads(told)["actors"]} == {"unnamed"}


def test_scaled_to_four_all_four_deliver(system: Composition) -> None:
    system.up("--scale=actor=4")
    wait(lambda: online(system) == 4, "four actors are online")
    wait(lambda: system.value("count(crossborder_actor_stored_steps_total > 0)") == 4, "each has delivered items")


def test_one_of_four_is_killed_and_missed_and_its_successor_welcome(system: Composition) -> None:
    docker("kill", system.containers("actor")[0])
    wait(lambda: online(system) == 3, "three actors are online")
    before = system.value("crossborder_stored_steps_total") or 0
    wait(lambda: (system.value("crossborder_stored_steps_total") or 0) > before, "the others go on")
    system.up("--scale=actor=4")
    wait(lambda: online(system) == 4, "four actors are online again")


def test_a_learner_cut_off_from_the_network_is_found_again_by_the_same_actors(system: Composition) -> None:
    actors, learner = set(system.containers("actor")), system.learner()["Id"]
    docker("network", "disconnect", NETWORK, learner)
    wait(lambda: system.value("max(up)") == 0, "Prometheus misses the learner")
    docker("network", "connect", "--alias=learner", NETWORK, learner)
    wait(lambda: system.value("min(up)") == 1, "Prometheus has it again")
    wait(lambda: online(system) == 4, "four actors are online again")
    wait(lambda: system.value("sum(crossborder_actor_reconnects_total)"), "actors have reconnected")
    assert set(system.containers("actor")) == actors


def test_a_learner_killed_by_9_comes_back_by_itself_and_goes_on_with_the_run(system: Composition) -> None:
    wait(lambda: system.value('crossborder_checkpoint_saves_total{kind="state"}'), "the run's state is kept")
    items, begun = system.value("crossborder_stored_steps_total") or 0, system.value(BEGUN)
    kill_process(system.learner()["State"]["Pid"])
    wait(lambda: system.learner()["RestartCount"] == 1 and system.is_healthy(), "the learner is healthy again")
    wait_for_another_life(system, begun)
    assert (system.value("crossborder_stored_steps_total") or 0) >= items
    assert system.value("count(group by (run_id) (last_over_time(crossborder_run_info[10m])))") == 1, "the same run"
    wait(lambda: system.value("crossborder_opt_steps_total"), "the trainer is seen again")
    steps = system.value("crossborder_opt_steps_total") or 0
    wait(lambda: (system.value("crossborder_opt_steps_total") or 0) > steps, "training goes on")


@pytest.fixture(scope="class")
def game(system: Composition) -> Iterator[None]:
    """A client that plays by the acting service."""
    channel = system.serve()
    grpc.channel_ready_future(channel).result(PATIENCE)
    with played(system.serving, channel):
        yield


@pytest.mark.usefixtures("game")
class TestWhileAGameIsPlayed:
    def test_an_acting_service_is_healthy_and_is_one_more_actor_of_the_learner(self, system: Composition) -> None:
        (serving,) = system.containers("serving")
        wait(
            lambda: json.loads(docker("inspect", serving))[0]["State"]["Health"]["Status"] == "healthy", "it is healthy"
        )
        wait(lambda: online(system) == 5, "it has joined beside four actors")
        wait(lambda: system.value("crossborder_serving_connected_lanes"), "Prometheus has found it")

    @pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda board: board.title)
    def test_every_expression_of_every_panel_returns_data(self, system: Composition, dashboard: Dashboard) -> None:
        asked = {at_once(expr, SHIPPED) for panel in dashboard.panels() for expr in panel.expressions()}
        missing = asked - {at_once(expr, SHIPPED) for expr in EMPTY}

        def all_found() -> bool:
            missing.difference_update({expr for expr in missing if system.prometheus.values(expr)})
            return not missing

        try:
            wait(all_found, "data for each expression")
        finally:
            assert missing == set()


def test_every_rule_can_be_evaluated(system: Composition) -> None:
    assert [rule["lastError"] for rule in system.prometheus.rules() if rule["health"] != "ok"] == []


def test_restarted_with_a_target_the_run_goes_on_to_it_and_ends_well(system: Composition) -> None:
    system.configure(merged(CARTPOLE, {"trainer": {"max_opts": ENDLESS["max_opts"]}}))  # It has used up its own.
    system("restart", "learner")
    assert docker("wait", system.learner()["Id"]) == "0", "the target is reached"
    assert not system.learner()["State"]["Running"]
    log = docker("logs", system.learner()["Id"])
    assert log.count("the target score was reached") == 1
    wait(lambda: system.value('max(up{job="crossborder-ingest"})') == 0, "Prometheus sees the end")
    assert len(system.containers("actor")) == 4, "sent away, actors come back for the next learner"
