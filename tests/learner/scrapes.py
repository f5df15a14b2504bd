"""What /metrics of a run says, and a run in which everything that has a metric has happened."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from common.wire.codec import encode
from common.wire.pb import crossborder_pb2 as pb
from learner.loop.server import LearnerServer
from tests.conftest import MORE_STEPS, PATIENCE, MakeConfig, endpoints, wait_for
from tests.learner.ingest.by_hand import SECONDS, Client, Talk
from tests.parts import expected_rows

Figures = dict[str, float]
REPORT = pb.Report(
    env_steps=50,
    seconds=9.0,
    episode_returns=[3.0, 5.0],
    episode_lengths=[20, 30],
    env_seconds=4.0,
    inference_seconds=2.5,
    wait_seconds=1.5,
    spool_bytes=380,
    reconnects=2,
    dropped_items=7,
    env_rebuilds=3,
    env_hangs=1,
    intervened_steps=11,
    episode_successes=[True],
)


def scrape(port: int) -> Figures:
    """The value of each series, by the metric's name with label values in brackets; without the prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
        text = response.read().decode()
    return {
        sample.name.removeprefix("crossborder_") + "".join(f"[{v}]" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_trainer(server: LearnerServer) -> Figures:
    return scrape(endpoints(server.run.dir.path)["trainer_metrics_port"])


def scrape_ingest(server: LearnerServer) -> Figures:
    return scrape(endpoints(server.run.dir.path)["ingest_metrics_port"])


@contextmanager
def full_run(make_config: MakeConfig) -> Iterator[LearnerServer]:
    """A run in which everything that has a metric has happened; one actor, by hand, has sent 20 rows: 18 steps."""
    config = make_config(
        trainer={"eval_interval": 50, "save_interval": 50, "record_interval": 50},
        replay={"capacity": 100, "samples_per_insert": 8.0},
        evaluator={"episodes": 1},
        server={"grace_seconds": 0.1},
        storage={"mirror": "memory://mirror"},
    )
    with LearnerServer(config) as server:
        server.control.trainer_waits_for = MORE_STEPS  # The opt steps below release no actor.
        client = Client(server)
        client.join()
        for _ in client.stub.GetModel(pb.GetModelRequest(), timeout=SECONDS):
            pass
        talk = Talk(client.stub)
        acting = pb.ModelVersion(incarnation=1, opt_steps=0)
        sent: dict[str, Any] = {"count": 10, "behaviour": acting}
        sent["payload"] = encode(client.schema, expected_rows(0, 9), 10)
        talk.say(client.batch(1, report=REPORT, **sent))
        while server.learner.opt_steps < 100:
            server.learner.step()
        talk.say(client.batch(2, report=pb.Report(env_steps=60, seconds=10.0), **sent))
        wait_for(lambda: server.control.env_steps == 60, "totals of both batches")
        yield server
