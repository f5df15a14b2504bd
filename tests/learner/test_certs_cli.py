from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from common.tokens import read_tokens
from learner.certs import MADE
from learner.certs_cli import main


def make(directory: Path, *arguments: str) -> int:
    return main(["--out", str(directory), "--host", "gpu-host", "--host", "10.0.0.5", *arguments])


def test_all_files_are_made_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    assert make(tmp_path / "certs") == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()} == dict.fromkeys(
        MADE, 0o600
    )
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["server", "actor"])
def test_a_certificate_fits_its_key_and_the_authority(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
    assert context.get_ca_certs()


def test_nothing_is_overwritten_by_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.key").write_text("precious")
    assert make(tmp_path) == 2
    assert "found server.key; replace: --renew" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]


def test_renewing_keeps_the_authority_and_the_newest_tokens(tmp_path: Path) -> None:
    assert make(tmp_path, "--renew") == 0, "where nothing is there, it makes everything"
    before = {name: (tmp_path / name).read_text() for name in MADE}
    for _ in range(2):
        newest = read_tokens(tmp_path / "actor.token")[0]
        assert make(tmp_path, "--renew") == 0
        new, kept = read_tokens(tmp_path / "actor.token")
        assert (kept, new != newest) == (newest, True)
    changed = {name for name in MADE if (tmp_path / name).read_text() != before[name]}
    assert changed == set(MADE) - {"ca.pem", "ca.key"}


def test_an_authority_without_its_key_is_not_renewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    (tmp_path / "ca.key").unlink()
    assert make(tmp_path, "--renew") == 2
    assert "expected the authority made here" in capsys.readouterr().err


def test_certificates_that_never_were_valid_are_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make(tmp_path, "--days", "0")
    assert ended.value.code == 2
    assert "--days: expected 1 or more, found '0'" in capsys.readouterr().err
