"""Every expression of every panel and rule, asked of a real Prometheus that scrapes a real run."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import yaml

from common.lanes.building import read_spec
from common.plugins.part_config import EnvConfig
from crossborder.certificates.crossborder_certs import main as certs
from dashboards import DASHBOARDS
from dashboards.dashboard import Dashboard, Row
from dashboards.fleet import FLEET
from dashboards.panels import Graph, Stat, Table
from tests.conftest import PATIENCE, Command, endpoints, wait_for
from tests.crossborder.serving.services import Caller
from tests.crossborder.serving.test_policy_server import address_of
from tests.dashboards.stack import SHIPPED, Prometheus, needs, prometheus

pytestmark = needs("prometheus")

VARIABLES = {"$instance": "learner", "$actor": ".*", "$__rate_interval": "10s"}

# Panels that may rightly have nothing to draw in this run, and why.
EMPTY = {
    'crossborder_record{instance="$instance",key=~"entropy|ent_coef|log_prob"}': "only SAC, AWAC, IQL, IMPALA and PPO",
    'crossborder_record{instance="$instance",key="ratio_mean"}': "only IMPALA and PPO",
    'crossborder_record{instance="$instance",key=~"kl|clipped_share"}': "only PPO",
    'crossborder_record{instance="$instance",key="pool_rating"}': "only runs that play against earlier models",
    'crossborder_record{instance="$instance",key=~"version_age|left_out"}': "only IMPALA and PPO",
}

# Metrics that no panel and no rule shows, and why.
UNUSED: dict[str, str] = {}


@contextmanager
def played(address: str, channel: grpc.Channel | None = None) -> Iterator[None]:
    """A context in which a client of CartPole's acting service plays all the time."""
    over = threading.Event()

    def play() -> None:
        obs = np.zeros((1, 4), np.float32)
        spec = read_spec(EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"}))
        with Caller(address, spec, channel) as caller:
            stream = caller.open()
            for seq in itertools.count(1):  # Each 10th step ends an episode.
                stream.step(seq, obs, reward=[] if seq % 10 == 1 else [1.0], truncated=[seq % 10 == 0])
                if over.wait(0.1):
                    return

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join(PATIENCE)


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The metrics' port of an acting service of the run, whose client plays all the time."""
    own = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--ca", str(folder / "certs" / "ca.pem")]
    learner = endpoints(folder / "run")["learner"].replace("127.0.0.1", "localhost")
    service = Command("policy-server", "--learner", learner, *own, log=folder / "serving.log")
    try:
        address = address_of(service)
        wait_for(lambda: "metrics on port" in service.output(), "all its doors are open")
        (port,) = re.findall(r"metrics on port (\d+)", service.output())
        with played(address):
            yield int(port)
    finally:
        service.end()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus beside CartPole with two actors and an acting service; the run evaluates and saves often."""
    folder = tmp_path_factory.mktemp("live")
    certs(["--out", str(folder / "certs"), "--host", "localhost"])
    settings = {
        "server.tls.certificate": folder / "certs" / "server.pem",
        "server.tls.key": folder / "certs" / "server.key",
        "env.rate_hz": 20,  # Some panels are those of robots; and the run leaves the cores to others.
        "env.eval_at_rate": False,
        "trainer.max_opts": 10_000_000,
        "trainer.target_score": "null",
        "agent.params.units": "[16]",
        "replay.samples_per_insert": 8,
        "trainer.warmup_period": 20,
        "trainer.eval_interval": 25,
        "trainer.save_interval": 25,
        "trainer.record_interval": 25,
        "evaluator.episodes": 1,
        "metrics.listen": "127.0.0.1:0",
        "storage.mirror": f"file://{folder}/mirror",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    where = ["--config", "configs/cartpole.yaml", "--listen", "127.0.0.1:0", "--run-dir", str(folder / "run")]
    learner = Command("learner-server", *where, "--local-actors", "2", *options, log=folder / "learner.log")
    try:
        with serving(folder) as port, prometheus(folder, endpoints(folder / "run"), serving_port=port) as asked:
            wait_for(
                lambda: asked.values('crossborder_last_checkpoint_timestamp_seconds{kind="state"}'),
                "the first checkpoint",
            )
            yield asked
    finally:
        learner.end()


def at_once(expr: str, variables: Mapping[str, str] = VARIABLES) -> str:
    """An expression as Grafana asks it, its variables replaced."""
    for name, value in variables.items():
        expr = expr.replace(name, value)
    return expr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda board: board.title)
def test_every_expression_of_every_panel_returns_data(live: Prometheus, dashboard: Dashboard) -> None:
    missing = {expr for panel in dashboard.panels() for expr in panel.expressions()} - set(EMPTY)
    end = time.monotonic() + PATIENCE
    while missing and time.monotonic() < end:
        missing = {expr for expr in missing if not live.values(at_once(expr))}
        time.sleep(0.2)
    assert not missing


def test_every_panel_has_data_also_where_actors_have_no_series_of_their_own(live: Prometheus) -> None:
    exprs = {expr for panel in FLEET.panels() for expr in panel.expressions()}
    without = {expr.replace("crossborder_actor_", "crossborder_nobody_") for expr in exprs}
    assert len(without - exprs) > 15, "these have another series instead"
    wait_for(lambda: all(live.values(at_once(expr)) for expr in without), "a value of each expression")


def test_no_alert_fires_in_a_healthy_run_and_every_metric_a_rule_asks_for_is_there(live: Prometheus) -> None:
    wait_for(lambda: all(rule["health"] != "unknown" for rule in live.rules()), "each rule is evaluated")
    rules = live.rules()
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    asked = {name for rule in rules for name in re.findall(r"crossborder_\w+", rule["query"])}
    assert asked <= live.metrics()


def test_every_exported_metric_is_shown_by_a_panel_or_a_rule(live: Prometheus) -> None:
    rules = yaml.safe_load((SHIPPED / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = [expr for board in DASHBOARDS for panel in board.panels() for expr in panel.expressions()]
    named = set(re.findall(r"crossborder_\w+", " ".join([*panels, *(rule["expr"] for rule in rules)])))
    parts = {re.sub("_bucket$", end, name) for name in named for end in ("_sum", "_count") if name.endswith("_bucket")}
    assert live.metrics() - named - parts == set(UNUSED)


def test_a_dashboard_of_every_kind_of_panel_can_be_drawn(live: Prometheus, tmp_path: Path) -> None:
    from dashboards.draw import Source, draw  # It imports matplotlib, which no other test of this file needs.

    kinds = {type(panel): panel for panel in FLEET.panels()}
    assert kinds.keys() == {Stat, Graph, Table}
    board = Dashboard("each-kind", "Each kind", "One panel of each kind.", (Row("One row", tuple(kinds.values())),))
    draw(board, Source(live.url, 30, VARIABLES)).savefig(tmp_path / "board.png", dpi=40)
