from __future__ import annotations

from pathlib import Path

import pytest

from common.wire.tokens import UNNAMED, Token, TokenSource
from crossborder.certificates.authority import ALL_FILES
from crossborder.certificates.crossborder_certs import main


def make(directory: Path, *arguments: str) -> int:
    return main(["--out", str(directory), "--host", "gpu-host", "--host", "10.0.0.5", *arguments])


def tokens_of(path: Path) -> tuple[Token, ...]:
    return TokenSource("", path).read()


def test_all_files_are_made_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    assert make(tmp_path / "certs") == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()} == dict.fromkeys(
        ALL_FILES, 0o600
    )
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700


def test_nothing_is_overwritten_by_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.key").write_text("precious")
    assert make(tmp_path) == 2
    assert "found server.key; replace: --renew" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]


def test_certificates_that_never_were_valid_are_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make(tmp_path, "--days", "0")
    assert ended.value.code == 2
    assert "--days: expected 1 or more, found '0'" in capsys.readouterr().err


def test_a_named_token_lets_its_holder_in_and_only_the_holders_file_holds_it_alone(tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    assert main(["--out", str(tmp_path), "--actor", "cpu-1", "--admin", "alice"]) == 0
    for role, name in (("actor", "cpu-1"), ("admin", "alice")):
        everybody, own = (tokens_of(tmp_path / place) for place in (f"{role}.token", f"{role}s/{name}.token"))
        assert [token.name for token in everybody] == [UNNAMED, name]
        assert own == everybody[1:]
        assert (tmp_path / f"{role}s/{name}.token").stat().st_mode & 0o777 == 0o600


def test_each_client_of_an_acting_service_gets_a_token_of_its_own(tmp_path: Path) -> None:
    for name in ("game", "robot"):
        assert main(["--out", str(tmp_path), "--client", name]) == 0
    everybody = tokens_of(tmp_path / "clients.tokens")
    assert [token.name for token in everybody] == ["game", "robot"]
    assert tokens_of(tmp_path / "clients" / "game.token") == everybody[:1]


@pytest.mark.parametrize(("role", "file"), [("actor", "actor.token"), ("client", "clients.tokens")])
def test_a_token_can_be_added_after_the_last_one_was_deleted(tmp_path: Path, role: str, file: str) -> None:
    (tmp_path / file).write_text("\n")
    assert main(["--out", str(tmp_path), f"--{role}", "robot"]) == 0
    assert [token.name for token in tokens_of(tmp_path / file)] == ["robot"]


def test_a_holders_token_is_replaced_when_asked_for_and_the_one_before_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [main(["--out", str(tmp_path), "--actor", "cpu-1"]) for _ in range(2)] == [0, 2]
    assert "expected no token of 'cpu-1', found one; replace: --renew" in capsys.readouterr().err
    (before,) = tokens_of(tmp_path / "actor.token")
    assert main(["--out", str(tmp_path), "--actor", "cpu-1", "--renew"]) == 0
    after, kept = tokens_of(tmp_path / "actor.token")
    assert (kept, after.name, after != before) == (before, "cpu-1", True)


def test_learner_and_actors_get_the_files_that_they_need_and_not_the_authoritys_key(tmp_path: Path) -> None:
    parts = ["--for-learner", str(tmp_path / "learner"), "--for-actors", str(tmp_path / "actors")]
    for _ in range(2):
        assert make(tmp_path / "all", *parts, "--renew") == 0
    found = {part: {path.name for path in (tmp_path / part).iterdir()} for part in ("learner", "actors")}
    assert found == {
        "learner": {"ca.pem", "server.pem", "server.key", "actor.token", "admin.token"},
        "actors": {"ca.pem", "actor.pem", "actor.key", "actor.token"},
    }
    assert main(["--out", str(tmp_path / "all"), "--actor", "cpu-1", *parts]) == 0
    known = tokens_of(tmp_path / "learner" / "actor.token")
    assert [token.name for token in known] == [UNNAMED, UNNAMED, "cpu-1"]
    assert tokens_of(tmp_path / "actors" / "actor.token") == known[:1], "the token to send, and nobody else's"


def test_files_that_were_made_before_are_handed_out_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path / "all"), "--for-actors", str(tmp_path / "actors")]
    assert main(words) == 2
    assert "ca.pem'; --host makes the files" in capsys.readouterr().err
    make(tmp_path / "all")
    made = {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    assert main(words) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()} == made
    assert (tmp_path / "actors" / "actor.pem").read_bytes() == made["actor.pem"]


def test_a_certificate_without_a_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    assert "--host: expected a name by which actors reach the learner" in capsys.readouterr().err


def test_an_error_is_told_with_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--actor=a b"]) == 2
    assert "crossborder-certs: name: expected up to 32 letters" in capsys.readouterr().err
