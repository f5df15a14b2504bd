"""What the ingest process serves besides the learner's own service, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.wire.tokens import authorization
from learner.loop.server import LearnerServer
from tests.conftest import ROOT, MakeConfig
from tests.learner.ingest.by_hand import SECONDS, Client


def list_services(channel: grpc.Channel, token: str | None = None) -> set[str]:
    """The services that a learner names by gRPC's reflection."""
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(asked, timeout=SECONDS, metadata=[authorization(token)] if token else None)
    return {service.name for service in answer.list_services_response.service}


def test_health_is_serving_and_reflection_is_there_for_admins(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    name = "crossborder.v1.LearnerService"
    for service in ("", name):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert list_services(client.channel) >= {name, "crossborder.v1.AdminService"}


def test_where_nobody_is_an_admin_there_is_no_reflection(make_config: MakeConfig, tmp_path: Path) -> None:
    token = "t" * 32
    (tmp_path / "tokens").write_text(f"actor {token}\n")
    (tmp_path / "tokens").chmod(0o600)
    with LearnerServer(make_config(server={"actor_token_file": str(tmp_path / "tokens")})) as server:
        channel = grpc.insecure_channel(server.ingest.address)
        with pytest.raises(grpc.RpcError) as refused:
            list_services(channel, token)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        channel.close()


def test_ingest_carries_no_torch() -> None:
    code = "import sys, learner.ingest.ingest_child; sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
