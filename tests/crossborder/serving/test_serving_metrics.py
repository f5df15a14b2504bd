from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest

from common.wire.pb import acting_pb2 as pb
from common.wire.tls import read_expiry
from tests.conftest import PATIENCE, ROOT, wait_for
from tests.crossborder.serving.services import Caller, Counting, Service, with_certificate


def scrape(service: Service, prefix: str = "crossborder_serving_") -> dict[str, float]:
    """The value of each sample that has a value, without the prefix of all names and the label of a single policy."""
    with urlopen(f"http://127.0.0.1:{service.places.metrics_port}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    found = (
        line.removeprefix(prefix).replace('{policy=""}', "").rsplit(" ", 1) for line in lines if line.startswith(prefix)
    )
    return {name: float(value) for name, value in found}


def test_the_metrics_tell_what_a_service_has_done() -> None:
    with Service(metrics="127.0.0.1:0") as service, Caller(service.places.address) as caller:
        stream = caller.open(3)
        stream.actions(1, 3)
        stream.actions(2, 3, reward=[1, 2, 3], truncated=[False, True, False])
        stream.actions(2, 3)
        stream.cut()
        wait_for(lambda: not service.policies[0].connected_lanes, "its end is noted: it does not lose its session")
        caller.resume(stream.opened.secret).send(step=pb.LaneSteps(seq=9))
        with pytest.raises(grpc.RpcError):
            caller.resume("nobody has this")
        told = scrape(service)
    counted = {name: told[name] for name in ("sessions", "lanes", "sessions_opened_total", "resumes_total")}
    assert counted == {"sessions": 1, "lanes": 3, "sessions_opened_total": 1, "resumes_total": 1}
    assert (told["actions_total"], told["repeated_steps_total"]) == (5, 1)
    assert (told["episodes_total"], told["returns_total"]) == (1, 2)
    assert told['refused_total{reason="session_lost"}'] == 1
    assert (told["batch_lanes_count"], told["batch_lanes_sum"]) == (2, 5)
    assert (told["wait_seconds_count"], told["answer_seconds_count"]) == (2, 2)


def test_each_policy_has_its_own_figures() -> None:
    named = {"easy": Counting(), "hard": Counting()}
    with Service(named=named, metrics="127.0.0.1:0") as service, Caller(service.places.address) as caller:
        caller.open(2, policy="hard").actions(1, 2)
        caller.open(1, policy="easy").actions(1)
        told = scrape(service)
    assert [told[f'actions_total{{policy="{name}"}}'] for name in named] == [1, 2]
    assert [told[f'batch_lanes_sum{{policy="{name}"}}'] for name in named] == [1, 2]
    assert [told[f'opt_steps{{policy="{name}"}}'] for name in named] == [7, 7]


def test_the_certificates_expiry_is_told_under_the_name_that_the_alert_watches(tmp_path: Path) -> None:
    with Service(metrics="127.0.0.1:0", **with_certificate(tmp_path, f"game {'a' * 20}")) as service:
        told = scrape(service, "crossborder_certificate_")
    assert told == {'expiry_timestamp_seconds{port="serving"}': read_expiry(tmp_path / "server.pem")}


def test_every_metric_is_on_the_page_and_the_page_names_no_other() -> None:
    with Service(metrics="127.0.0.1:0") as service:
        told = {name.partition("{")[0] for name in scrape(service)}
    named = re.findall(r"`crossborder_serving_([a-z_]+)[`{]", (ROOT / "docs" / "metrics.md").read_text())
    labelled = {"over_limit_total"}  # It has no series before the first call over a limit.
    assert set(named) == {re.sub("_(bucket|count|sum|created)$", "", name) for name in told} | labelled
