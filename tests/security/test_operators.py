"""What those who run it are told over TLS and with tokens: ``actor-worker --check`` and ``learner-server status``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from common.errors import AuthenticationError
from common.wire.trust import Trust
from crossborder.certificates.authority import make_authority
from learner.commands.admin_client import AdminClient, AdminTrust
from learner.commands.fleet_table import FleetView
from learner.ingest.cordons import Selection
from tests.actor.commands.test_doctor import lines_and_error
from tests.security.conftest import Secured, write


def failed(secured: Secured, **trust: object) -> str:
    """The line of the one check that fails."""
    lines, error = lines_and_error(secured.address, secured.trust(**trust))
    assert isinstance(error, AuthenticationError)
    (line,) = (line for line in lines if line.startswith("FAIL"))
    return line


def test_a_check_tells_of_the_certificate_and_the_token(secured: Secured) -> None:
    lines, error = lines_and_error(secured.address, secured.trust())
    assert error is None
    assert lines[2].startswith("pass  TLS         for gpu-host, localhost, 127.0.0.1, 0:0:0:0:0:0:0:1; by crossborder")
    assert lines[4] == "pass  token       accepted"


def test_a_check_tells_that_nobody_known_signed_the_certificate(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(make_authority().certificate_pem)
    assert "TLS         the learner's certificate does not verify" in failed(secured, ca=tmp_path / "other.pem")


@pytest.mark.parametrize(
    ("hosts", "days", "why"), [(("example.org",), 1, "IP address mismatch"), (("127.0.0.1",), -1, "has expired")]
)
def test_a_check_tells_what_is_wrong_with_the_certificate(
    secured: Secured, hosts: tuple[str, ...], days: int, why: str
) -> None:
    secured.serve(secured.sign(*hosts, days=days))
    try:
        assert why in failed(secured)
    finally:
        secured.serve(secured.sign("gpu-host", "localhost", "127.0.0.1", "::1"))


def test_a_check_tells_that_a_token_is_wrong_or_missing(secured: Secured, tmp_path: Path) -> None:
    wrong = write(tmp_path / "wrong", "not-the-right-token-at-all")
    assert "token       the learner refused the token" in failed(secured, token_file=wrong)
    assert "or was shown none (--token-file)" in failed(secured, token_file=None)


def test_a_check_tells_that_the_learner_asks_for_a_certificate(tmp_path: Path) -> None:
    made = Secured(tmp_path, tls={"client_ca": str(tmp_path / "certs" / "ca.pem")})
    with made.server:
        assert "it may ask for your certificate (--certificate, --key)" in failed(made)
        own = made.trust(certificate=made.path("actor.pem"), key=made.path("actor.key"))
        assert lines_and_error(made.address, own)[1] is None


def test_a_check_tells_that_the_learner_speaks_no_tls(plaintext: str, secured: Secured) -> None:
    lines, error = lines_and_error(plaintext, secured.trust())
    assert isinstance(error, AuthenticationError)
    assert "the learner does not speak TLS" in lines[-2]


def look(secured: Secured, token: str) -> FleetView:
    trust = AdminTrust(ca=Path(secured.path("ca.pem")), token_file=Path(secured.path(token)))
    with closing(AdminClient(secured.address, trust)) as client:
        return client.fetch_status()


def test_admins_are_told_how_the_run_is_and_actors_are_not(secured: Secured) -> None:
    assert look(secured, "admin.token").name == "counting"
    with pytest.raises(AuthenticationError, match="the learner refused the token; admins need"):
        look(secured, "actor.token")


def test_actors_can_drain_nobody(secured: Secured) -> None:
    trust = AdminTrust(ca=Path(secured.path("ca.pem")), token_file=Path(secured.path("actor.token")))
    with closing(AdminClient(secured.address, trust)) as client:
        for order in (client.cordon, client.drain, client.uncordon):
            with pytest.raises(AuthenticationError, match="the learner refused the token"):
                order(Selection(everybody=True))
    assert not look(secured, "admin.token").cordoned


def test_an_admin_is_no_actor(secured: Secured) -> None:
    assert "token       the learner refused the token" in failed(secured, token_file=secured.path("admin.token"))


def test_where_actors_have_tokens_and_admins_have_none_nobody_is_an_admin(tmp_path: Path) -> None:
    made = Secured(tmp_path, admin_token_file=None)
    with made.server, pytest.raises(AuthenticationError, match=r"admins need a token of server\.admin_token_file"):
        look(made, "actor.token")


def test_plaintext_to_a_learner_that_speaks_tls_gets_no_answer(secured: Secured) -> None:
    lines, error = lines_and_error(secured.address, Trust())
    assert error is not None
    assert lines[-2].startswith("FAIL  answer      no answer: UNAVAILABLE")
    assert "--ca, if the learner speaks TLS" in lines[-1]
