"""What the ingest process serves besides the learner's own service, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

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


def test_ingest_carries_no_torch() -> None:
    code = "import sys, learner.ingest.ingest_child; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
