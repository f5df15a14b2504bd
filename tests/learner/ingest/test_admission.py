from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.wire.waiting import WaitingBytes
from learner.ingest import admission as admission_module
from learner.ingest.admission import Admission
from learner.ingest.audit import AuditLog
from learner.ingest.gate import Gate
from learner.ingest.limits import CallLimits
from learner.ingest.refusals import IngestCounts
from tests.conftest import PATIENCE

SECONDS = PATIENCE


@asynccontextmanager
async def health_channel(directory: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server on this host that asks for no token."""
    counts = IngestCounts()
    limits, audit = CallLimits(16, counts, may_share_address=False), AuditLog(directory / "audit.jsonl")
    gate, waiting = Gate({}), WaitingBytes(1 << 30, "the test's bound")
    admission = Admission(gate, limits, counts, audit, handshake_seconds=SECONDS, waiting=waiting)
    server = grpc.aio.server(interceptors=[admission])
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def test_a_health_stream_ends_after_a_time_and_may_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "WATCH_SECONDS", 0.1)

    async def watch_twice() -> list[list[int]]:
        async with health_channel(tmp_path) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return [[answer.status async for answer in stub.Watch(request, timeout=SECONDS)] for _ in range(2)]

    request = health_pb2.HealthCheckRequest()
    assert asyncio.run(watch_twice()) == [[health_pb2.HealthCheckResponse.SERVING]] * 2


def test_a_caller_who_may_ask_is_told_that_a_method_does_not_exist(tmp_path: Path) -> None:
    async def ask() -> grpc.StatusCode:
        async with health_channel(tmp_path) as channel:
            explain: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/grpc.health.v1.Health/Explain"
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await explain(b"", timeout=SECONDS)
            return refused.value.code()

    assert asyncio.run(ask()) is grpc.StatusCode.UNIMPLEMENTED
