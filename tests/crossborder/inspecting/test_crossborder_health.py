"""What probes of containers see."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from common.errors import ConfigError, LearnerUnreachableError
from common.wire.trust import Trust
from crossborder.inspecting.crossborder_health import SERVICE, check_health, main
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, Command, free_port
from tests.security.conftest import Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


def test_a_learner_that_serves_is_reported_as_serving(host: LearnerServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--learner", host.ingest.address]) == 0
    assert capsys.readouterr().out == f"{host.ingest.address}: serving\n"


def test_a_learner_that_does_not_answer_gives_the_exit_code_of_an_unreachable_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert main(["--learner", f"127.0.0.1:{port}", "--timeout", "0.5"]) == LearnerUnreachableError.exit_code


def test_with_patience_it_is_asked_until_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    answering = grpc.server(ThreadPoolExecutor(1))
    servicer = HealthServicer()
    servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, answering)
    with socket.create_server(("127.0.0.1", port)) as silent, ThreadPoolExecutor(1) as pool:
        silent.settimeout(PATIENCE)

        def serve_late() -> None:
            silent.accept()[0].close()
            silent.close()
            answering.add_insecure_port(f"127.0.0.1:{port}")
            answering.start()

        serving = pool.submit(serve_late)
        assert main(["--learner", f"127.0.0.1:{port}", "--timeout", "5", "--patience", str(PATIENCE)]) == 0
        serving.result(PATIENCE)
    answering.stop(None)
    assert "serving" in capsys.readouterr().out


def test_an_interrupt_ends_the_wait_for_a_learner_without_a_traceback(start: Callable[..., Command]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        asking = start("crossborder-health", "--learner", address, "--patience", str(PATIENCE))
        with silent.accept()[0]:
            asking.signal(signal.SIGINT)
            assert asking.wait() == 128 + signal.SIGINT
    assert asking.output() == "crossborder-health: interrupted\n"


def test_health_needs_no_token(secured: Secured, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--learner", secured.address, "--ca", secured.path("ca.pem")]) == 0
    assert capsys.readouterr().out == f"{secured.address}: serving\n"


def test_a_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--learner", "localhost:50051", "--ca", str(tmp_path / "ca.pem")]) == ConfigError.exit_code
    assert str(tmp_path / "ca.pem") in capsys.readouterr().err


def test_a_learner_that_says_it_does_not_serve_is_unreachable() -> None:
    answering, servicer = grpc.server(ThreadPoolExecutor(1)), HealthServicer()
    servicer.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, answering)
    port = answering.add_insecure_port("127.0.0.1:0")
    answering.start()
    try:
        with pytest.raises(LearnerUnreachableError, match=rf":{port}: expected SERVING, found NOT_SERVING"):
            check_health(f"127.0.0.1:{port}", Trust(), PATIENCE)
    finally:
        answering.stop(None).wait()


def test_a_file_of_the_trust_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-file"):
        check_health("localhost:1", Trust(ca="no-such-file"), 0.5)
