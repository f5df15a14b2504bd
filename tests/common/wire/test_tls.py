from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.wire.tls import read_authorities, read_pair
from crossborder.certificates.authority import make_files


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_files(tmp_path, ["gpu-host"], 1, renew=False)
    return tmp_path


def test_a_key_and_its_certificate_are_read_in_grpcs_order(certs: Path) -> None:
    certificate, key = certs / "server.pem", certs / "server.key"
    assert read_pair(certificate, key) == (key.read_bytes(), certificate.read_bytes())


@pytest.mark.parametrize(("certificate", "key"), [("server.pem", "actor.key"), ("server.key", "server.pem")])
def test_a_certificate_without_its_key_is_refused_with_both_files(certs: Path, certificate: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"certificate .*{certificate}: expected PEM .* key in .*{key}: "):
        read_pair(certs / certificate, certs / key)


def test_authorities_are_read(certs: Path) -> None:
    assert read_authorities(certs / "ca.pem") == (certs / "ca.pem").read_bytes()


@pytest.mark.parametrize("content", [b"", b"no certificate"])
def test_a_file_without_certificates_is_no_authority(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"CA file .*ca\.pem: expected certificates in PEM"):
        read_authorities(path)


def test_a_missing_file_is_named_with_its_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CA file .*no\.pem: cannot be read: No such file"):
        read_authorities(tmp_path / "no.pem")
    with pytest.raises(ConfigError, match=r"private key .*no\.key: cannot be read: No such file"):
        read_pair(tmp_path / "no.pem", tmp_path / "no.key")
