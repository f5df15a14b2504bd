from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.errors import ConfigError, LearnerUnreachableError
from common.wire.trust import Trust
from crossborder.inspecting.health import SERVICE, check_health
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, free_port


def test_a_learner_that_serves_passes(host: LearnerServer) -> None:
    check_health(host.ingest.address, Trust(), PATIENCE)


def test_a_learner_that_says_it_does_not_serve_is_unreachable() -> None:
    server, servicer = grpc.server(ThreadPoolExecutor(1)), health.HealthServicer()
    servicer.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(LearnerUnreachableError, match=rf":{port}: expected SERVING, found NOT_SERVING"):
            check_health(f"127.0.0.1:{port}", Trust(), PATIENCE)
    finally:
        server.stop(None).wait()


def test_a_learner_that_does_not_answer_is_unreachable() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(LearnerUnreachableError, match=f"{address}: "):
        check_health(address, Trust(), 0.5)


def test_a_file_of_the_trust_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-file"):
        check_health("localhost:1", Trust(ca="no-such-file"), 0.5)
