"""What the ingest process serves besides the learner's own service, and what it does not load."""

from __future__ import annotations

import socket
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from common.config.run_config import MetricsConfig
from common.errors import AddressError
from learner.ingest.__main__ import serve_metrics
from tests.conftest import ROOT
from tests.learner.ingest.by_hand import SECONDS, Client


def test_health_is_serving_and_reflection_is_off(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    name = "crossborder.v1.LearnerService"
    for service in ("", name):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    with pytest.raises(grpc.RpcError) as refused:
        list(reflection_pb2_grpc.ServerReflectionStub(client.channel).ServerReflectionInfo(asked, timeout=SECONDS))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_port_of_metrics_that_is_taken_meanwhile_is_replaced_only_if_the_configuration_leaves_it_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        metrics = serve_metrics(CollectorRegistry(), MetricsConfig(ingest_port=0), port)
        assert metrics.port not in (None, port)
        metrics.close()
        with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve_metrics(CollectorRegistry(), MetricsConfig(ingest_port=port), port)


def test_ingest_carries_no_torch() -> None:
    code = "import sys, learner.ingest.__main__; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
