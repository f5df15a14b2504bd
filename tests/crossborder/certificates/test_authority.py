from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.wire.tokens import Token, TokenSource
from crossborder.certificates.authority import ALL_FILES, add_token, make_files
from tests.disks import Disk

NO_HOSTS = ["rechner-ü", "gpu-host:50051", "https://gpu-host", "gpu host", "10.0.0.0/8", ""]


def make(directory: Path, *, renew: bool = False) -> list[Path]:
    return make_files(directory, ["gpu-host", "10.0.0.5"], 365, renew=renew)


def tokens_of(path: Path) -> tuple[Token, ...]:
    return TokenSource("", path).read()


@pytest.mark.parametrize("name", ["server", "actor"])
def test_a_certificate_fits_its_key_and_the_authority(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
    assert context.get_ca_certs()


@pytest.mark.parametrize(("name", "purposes"), [("server", {"sslserver", "sslclient"}), ("actor", {"sslclient"})])
def test_an_actors_certificate_does_not_serve_as_a_learners(tmp_path: Path, name: str, purposes: set[str]) -> None:
    make(tmp_path)
    for wanted in ("sslserver", "sslclient"):
        command = ["openssl", "verify", "-purpose", wanted, "-CAfile", tmp_path / "ca.pem", tmp_path / f"{name}.pem"]
        assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) == (wanted in purposes)


def test_an_authority_without_its_key_is_not_renewed(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match="expected the authority made here"):
        make(tmp_path, renew=True)


def test_renewing_keeps_the_authority_and_the_newest_tokens(tmp_path: Path) -> None:
    make(tmp_path, renew=True)  # Where nothing is, this makes everything.
    before = {name: (tmp_path / name).read_text() for name in ALL_FILES}
    for _ in range(2):
        newest = tokens_of(tmp_path / "actor.token")[0]
        make(tmp_path, renew=True)
        new, kept = tokens_of(tmp_path / "actor.token")
        assert (kept, new != newest) == (newest, True)
    changed = {name for name in ALL_FILES if (tmp_path / name).read_text() != before[name]}
    assert changed == set(ALL_FILES) - {"ca.pem", "ca.key"}


def test_renewing_everything_keeps_tokens_with_names(tmp_path: Path) -> None:
    make(tmp_path)
    add_token(tmp_path, "actor", "cpu-1", renew=False)
    named = tokens_of(tmp_path / "actor.token")[1]
    for _ in range(2):
        make(tmp_path, renew=True)
    assert tokens_of(tmp_path / "actor.token")[-1] == named


@pytest.mark.parametrize("name", ["a b", "../x", "", "unnamed", "x" * 33])
def test_a_malformed_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name: expected up to 32 letters"):
        add_token(tmp_path, "actor", name, renew=False)


def test_a_host_may_have_a_longer_name_than_a_certificates_subject(tmp_path: Path) -> None:
    make_files(tmp_path, ["learner-0.crossborder-learner.reinforcement-learning.svc.cluster.local"], 365, renew=False)
    assert (tmp_path / "server.pem").exists()


@pytest.mark.parametrize(
    ("host", "days", "told"),
    [
        *((host, 365, f"--host {host}: expected a name or an address alone, without a port") for host in NO_HOSTS),
        ("gpu-host", 4_000_000, "--days 4000000: expected"),
    ],
)
def test_a_host_or_a_time_that_no_certificate_takes_is_refused(tmp_path: Path, host: str, days: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_files(tmp_path, [host], days, renew=False)


def test_either_all_files_of_an_authority_are_written_or_none(tmp_path: Path) -> None:
    """With half of them, neither a first call nor --renew would work."""
    in_the_way = tmp_path / "certs" / ".server.key.part"
    in_the_way.mkdir(parents=True)
    with pytest.raises(ConfigError, match="certs: cannot be written"):
        make_files(tmp_path / "certs", ["localhost"], 1, renew=False)
    assert list((tmp_path / "certs").iterdir()) == [in_the_way]
    in_the_way.rmdir()
    make_files(tmp_path / "certs", ["localhost"], 1, renew=False)


def test_nothing_of_a_key_stays_on_a_full_disk(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        make(disk.path)
    assert {path.name for path in disk.path.iterdir()} == {"filler"}
