"""Who is let in by certificates: real handshakes with a real ingest process."""

from __future__ import annotations

import socket
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import AuthenticationError, LearnerUnreachableError
from common.wire.address import split_address
from common.wire.trust import Trust
from crossborder.certificates.authority import Signed, make_authority, sign
from tests.security.conftest import Secured, join, replace


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Asks for certificates of actors too."""
    directory = tmp_path_factory.mktemp("mutual")
    made = Secured(directory, tls={"client_ca": str(directory / "certs" / "ca.pem")})
    with made.server:
        yield made


@pytest.fixture
def restored(secured: Secured) -> Iterator[Secured]:
    """Gets its good certificate back at the end."""
    yield secured
    secured.serve(secured.sign("127.0.0.1"))


def test_whoever_has_the_authority_and_a_token_gets_in(secured: Secured) -> None:
    assert join(secured.address, secured.trust()) == secured.server.run.dir.identity.run_id


def test_an_actor_with_another_authority_refuses_the_learner(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(make_authority().certificate_pem)
    with pytest.raises(AuthenticationError, match="certificate does not verify: unable to get local issuer"):
        join(secured.address, secured.trust(ca=tmp_path / "other.pem"))


def test_an_actor_with_the_public_authorities_refuses_the_learner(secured: Secured) -> None:
    with pytest.raises(AuthenticationError, match="certificate does not verify"):
        join(secured.address, secured.trust(ca=None))


def test_a_certificate_for_another_host_is_refused(restored: Secured) -> None:
    restored.serve(restored.sign("example.org"))
    with pytest.raises(AuthenticationError, match="certificate is not for this host name"):
        join(restored.address, restored.trust())


def test_a_certificate_that_has_expired_is_refused_and_a_new_one_needs_no_restart(restored: Secured) -> None:
    restored.serve(restored.sign("127.0.0.1", days=-1))
    with pytest.raises(AuthenticationError, match="certificate does not verify: certificate has expired"):
        join(restored.address, restored.trust())
    restored.serve(restored.sign("127.0.0.1"))
    join(restored.address, restored.trust())
    assert restored.server.ingest.restarts == 0


def test_a_certificate_whose_key_has_not_come_yet_is_not_used(restored: Secured) -> None:
    replace(restored.certs / "server.pem", restored.sign("127.0.0.1").certificate_pem)
    assert join(restored.address, restored.trust())


def test_plaintext_to_a_tls_port_is_not_answered(secured: Secured) -> None:
    with pytest.raises(LearnerUnreachableError, match=r"Socket closed.*--ca"):
        join(secured.address, Trust(), patience=0.5)


def test_tls_to_a_plaintext_port_says_so(plaintext: str, secured: Secured) -> None:
    with pytest.raises(AuthenticationError, match=r"does not speak TLS.*--insecure"):
        join(plaintext, secured.trust())


def tls_version(address: str, version: ssl.TLSVersion) -> str | None:
    """What a client that knows this version of TLS alone, with every cipher there is, comes to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    with socket.create_connection(split_address(address), 10) as plain, context.wrap_socket(plain) as encrypted:
        return encrypted.version()


def test_tls_below_1_2_is_refused(secured: Secured) -> None:
    assert tls_version(secured.address, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.raises(OSError, match=r"EOF|reset|alert"):
        tls_version(secured.address, ssl.TLSVersion.TLSv1_1)


def trust_with(mutual: Secured, signed: Signed, directory: Path) -> Trust:
    (directory / "own.pem").write_bytes(signed.certificate_pem)
    (directory / "own.key").write_bytes(signed.key_pem)
    return mutual.trust(certificate=directory / "own.pem", key=directory / "own.key")


def test_a_learner_that_asks_for_certificates_lets_its_authoritys_in(mutual: Secured) -> None:
    assert join(mutual.address, mutual.trust(certificate=mutual.path("actor.pem"), key=mutual.path("actor.key")))


def test_a_learner_that_asks_for_certificates_refuses_an_actor_without_one(mutual: Secured) -> None:
    with pytest.raises(LearnerUnreachableError, match=r"--certificate"):
        join(mutual.address, mutual.trust(), patience=0.5)


@pytest.mark.parametrize("why", ["foreign", "expired"])
def test_a_learner_that_asks_for_certificates_refuses_others(mutual: Secured, tmp_path: Path, why: str) -> None:
    signed = sign(make_authority(), "actor") if why == "foreign" else mutual.sign(days=-1)
    with pytest.raises(LearnerUnreachableError):
        join(mutual.address, trust_with(mutual, signed, tmp_path), patience=0.5)
