"""Who may read /metrics: real scrapes of a real endpoint."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from common.config.run_config import MetricsConfig
from common.config.server_config import TlsConfig
from common.errors import ConfigError
from common.wire.tls import read_expiry
from crossborder.certificates.authority import make_authority, make_files, sign
from learner.records.exposition import MetricsServer


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_files(tmp_path, ["localhost"], 1, renew=False)
    return tmp_path


def serve(certs: Path, **tls: str) -> MetricsServer:
    given = {"certificate": f"{certs}/server.pem", "key": f"{certs}/server.key", **tls}
    return MetricsServer(CollectorRegistry(), "127.0.0.1", 0, tls=TlsConfig.model_validate(given))


@pytest.fixture
def mutual(certs: Path) -> Iterator[MetricsServer]:
    """Asks scrapers for certificates."""
    server = serve(certs, client_ca=f"{certs}/ca.pem")
    yield server
    server.close()


def scrape(server: MetricsServer, certs: Path, certificate: str | None = "actor") -> str:
    """As Prometheus with this ``tls_config``."""
    context = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    if certificate:
        context.load_cert_chain(certs / f"{certificate}.pem", certs / f"{certificate}.key")
    with urllib.request.urlopen(f"https://127.0.0.1:{server.port}/metrics", timeout=20, context=context) as answer:
        text: str = answer.read().decode()
    return text


def test_nobody_beyond_this_host_may_read_unless_told_otherwise() -> None:
    assert (MetricsConfig().host, MetricsConfig().encrypted) == ("127.0.0.1", False)


def test_an_encrypted_endpoint_is_read_with_the_authority_alone(certs: Path) -> None:
    server = serve(certs)
    assert "python_info" in scrape(server, certs, certificate=None)
    with pytest.raises(OSError, match=r"reset|closed|disconnected"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=20)
    server.close()


def test_a_renewed_certificate_is_shown_from_the_next_connection_on(certs: Path) -> None:
    server = serve(certs)
    before = ssl.get_server_certificate(("127.0.0.1", server.port or 0), timeout=20)
    make_files(certs, ["localhost"], 2, renew=True)
    after = ssl.get_server_certificate(("127.0.0.1", server.port or 0), timeout=20)
    assert (before, after) == (before, (certs / "server.pem").read_text())
    assert before != after
    (certs / "server.pem").write_text("no certificate")
    assert ssl.get_server_certificate(("127.0.0.1", server.port or 0), timeout=20) == after
    server.close()


def test_the_expiry_of_a_certificate_is_read_from_its_file(certs: Path) -> None:
    expiry = read_expiry(certs / "server.pem")
    assert expiry is not None
    assert 23 * 3600 < expiry - time.time() < 25 * 3600
    assert read_expiry(certs / "missing.pem") is None
    assert read_expiry(certs / "server.key") is None


def test_one_that_asks_for_certificates_lets_its_authoritys_in(mutual: MetricsServer, certs: Path) -> None:
    assert "python_info" in scrape(mutual, certs)


@pytest.mark.parametrize("certificate", [None, "foreign"])
def test_one_that_asks_for_certificates_refuses_others(
    mutual: MetricsServer, certs: Path, certificate: str | None
) -> None:
    foreign = sign(make_authority(), "foreign")
    (certs / "foreign.pem").write_bytes(foreign.certificate_pem)
    (certs / "foreign.key").write_bytes(foreign.key_pem)
    with pytest.raises(OSError, match=r"(?i)certificate required|unknown.ca|reset|EOF"):
        scrape(mutual, certs, certificate)


def test_whoever_never_finishes_a_handshake_holds_up_neither_others_nor_the_end(certs: Path) -> None:
    server = serve(certs)
    assert server.port is not None
    with socket.create_connection(("127.0.0.1", server.port), 20):
        assert "python_info" in scrape(server, certs, certificate=None)
        server.close()


def test_a_certificate_that_cannot_be_read_is_named(certs: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.pem"):
        serve(certs, certificate=f"{certs}/none.pem")
