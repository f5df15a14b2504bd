from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from actor.client.connector import Connector
from common.wire.trust import Trust
from crossborder.certificates.authority import Signed, load_authority, make_files, sign
from learner.loop.server import LearnerServer
from tests.conftest import PATIENCE, counting_config


class Secured:
    """A learner host that lets in over TLS and with a token only, and the files it was given."""

    changes: ClassVar[dict[str, Any]] = {"env": {"target": "tests.parts:PacedEnv"}}
    """Laid over the sections of the configuration: an actor leaves the cores to others."""

    def __init__(self, directory: Path, **server: Any) -> None:
        self.certs = directory / "certs"
        make_files(self.certs, ["gpu-host"], 1, renew=False)
        self.authority = load_authority(self.certs)
        tls = {"certificate": self.path("server.pem"), "key": self.path("server.key"), **server.pop("tls", {})}
        tokens = {"actor_token_file": self.path("actor.token"), "admin_token_file": self.path("admin.token")}
        listen = {"listen": "127.0.0.1:0", "grace_seconds": 0.5}
        server = {**listen, "tls": tls, **tokens, **server}
        config = counting_config(directory / "run", server=server, **self.changes)
        config.check()
        self.server = LearnerServer(config)

    def path(self, name: str) -> str:
        return str(self.certs / name)

    @property
    def address(self) -> str:
        return self.server.ingest.address

    def trust(self, **changes: Any) -> Trust:
        """What an actor needs that is let in."""
        return Trust.model_validate({"ca": self.path("ca.pem"), "token_file": self.path("actor.token"), **changes})

    def serve(self, signed: Signed) -> None:
        """Put another certificate in the place of the server's, as whoever renews it does."""
        replace(self.certs / "server.pem", signed.certificate_pem)
        replace(self.certs / "server.key", signed.key_pem)

    def sign(self, *hosts: str, days: int = 1) -> Signed:
        return sign(self.authority, "another", hosts, days)


def replace(path: Path, content: bytes) -> None:
    """Whole, by a new file in its place."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)


def write(path: Path, *lines: str) -> Path:
    replace(path, "".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One for all tests of a file; each leaves it as it was."""
    made = Secured(tmp_path_factory.mktemp("secured"))
    with made.server:
        yield made


@pytest.fixture
def plaintext() -> Iterator[str]:
    """The address of a gRPC server that speaks no TLS."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait(PATIENCE)


def join(address: str, trust: Trust, patience: float = PATIENCE) -> str:
    """Join as an actor with this trust does; the run's id."""
    connector = Connector(address, 1, patience, threading.Event(), trust)
    try:
        return connector.join().run_id
    finally:
        connector.close()
