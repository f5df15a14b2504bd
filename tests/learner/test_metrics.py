from __future__ import annotations

import urllib.request
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from common.codec import encode
from common.errors import AddressError
from learner.metrics import MetricsServer
from learner.server import LearnerServer
from tests.conftest import MakeConfig, endpoints
from tests.learner.ingest.test_service import Client, Talk
from tests.parts import expected_items


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        sample.name + "".join(f"[{v}]" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_both_processes_of_the_learner_host_can_be_scraped(make_config: MakeConfig) -> None:
    config = make_config()
    assert config.run_dir is not None
    with LearnerServer(config) as server:
        client = Client(server)
        client.join()
        talk = Talk(client.stub)
        talk.say(client.batch(1, count=5, payload=encode(client.schema, expected_items(0, 5), 5)))
        while server.learner.opt_steps < 100:
            server.learner.step()
        ports = endpoints(config.run_dir)
        ingest, trainer = scrape(ports["ingest_metrics_port"]), scrape(ports["trainer_metrics_port"])
    assert ingest["crossborder_items_total"] == 5
    assert ingest["crossborder_batches_total"] == 1
    assert ingest["crossborder_payload_bytes_total"] == 5 * client.schema.row_bytes
    assert ingest["crossborder_actors[online]"] == 1
    assert ingest["crossborder_joins_total"] == 1
    assert trainer["crossborder_opt_steps_total"] == 100
    assert trainer["crossborder_samples_drawn_total"] == 3200
    assert trainer["crossborder_replay_size_items"] == 5
    assert trainer["crossborder_record[samples_total]"] == 5
    for metrics in (ingest, trainer):
        assert metrics["process_resident_memory_bytes"] > 0


class Nothing(Collector):
    def collect(self) -> Iterable[object]:  # type: ignore[override]
        return []


def test_a_metrics_port_that_is_taken_is_named_and_free_again_after_close() -> None:
    first = MetricsServer(Nothing(), "127.0.0.1", 0)
    with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{first.port}"):
        MetricsServer(Nothing(), "127.0.0.1", first.port)
    first.close()
    again = MetricsServer(Nothing(), "127.0.0.1", first.port)
    assert again.port == first.port
    again.close()


def test_no_port_serves_nothing() -> None:
    server = MetricsServer(Nothing(), "127.0.0.1", None)
    assert server.port is None
    server.close()
