"""Makes a private certificate authority, certificates and tokens, by which a group of hosts trusts each other.

Needs ``crossborder[certs]``. It is for development and closed networks; elsewhere use your own certificates.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import ConfigError
from common.wire.tokens import MAX_NAME, UNNAMED, Token, TokenSource, format_tokens, is_name, read_token_text

AUTHORITY_DAYS = 3650
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")
"""The server's certificate is valid for these names too, by which actors on its own host reach it."""
AUTHORITY = ("ca.pem", "ca.key")
TOKENS = ("actor.token", "admin.token")
SERVERS_TOKENS = {"actor": "actor.token", "admin": "admin.token", "client": "clients.tokens"}
"""For each role the file that its server reads: the learner, and for clients the acting service."""
FOR_LEARNER = ("ca.pem", "server.pem", "server.key", *TOKENS)
FOR_ACTORS = ("ca.pem", "actor.pem", "actor.key", "actor.token")
"""``ca.key`` is in neither list: anybody who has this key can pose as the learner."""
ALL_FILES = (*AUTHORITY, "server.pem", "server.key", "actor.pem", "actor.key", *TOKENS)
_BACKDATED = timedelta(hours=1)
"""A new certificate is valid from this time in the past, so that hosts whose clocks are behind accept it at once."""


@dataclass(frozen=True)
class Signed:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_authority() -> Signed:
    """Make a new authority, whose certificate signs itself and is valid for ``AUTHORITY_DAYS``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"crossborder CA {secrets.token_hex(4)}")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Signed(builder.sign(key, hashes.SHA256()), key)


def sign(authority: Signed, name: str, hosts: Sequence[str] = (), days: int = 365) -> Signed:
    """Make a key and a certificate: of a server if it has hosts, otherwise of a client.

    A client's certificate does not let anybody pose as the learner. A server's serves for clients too: with
    ``--client-ca``, the learner's own actors and the front before it show it.

    Args:
        authority: signs the certificate.
        name: the common name.
        hosts: host names and IP addresses of a server; empty for a client.
        days: until it expires; a negative number makes one that has expired, for tests.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [*[ExtendedKeyUsageOID.SERVER_AUTH] * bool(hosts), ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(name), authority.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return Signed(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    try:
        until = now + timedelta(days=days)
    except OverflowError as error:
        raise ConfigError(f"--days {days}: expected a date before the year 10000") from error
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9_*.-]+", host):
        raise ConfigError(
            f"--host {host}: expected a name or an address alone, without a port or a scheme, and a name of other "
            "letters than ASCII in its form with xn--"
        )
    return x509.DNSName(host)


def load_authority(directory: Path) -> Signed:
    """Load the authority that ``make_files`` wrote to a directory.

    Raises:
        ConfigError: it cannot be read.
    """
    certificate, key = (directory / name for name in AUTHORITY)
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{key}: expected the key of an authority made here, found another kind")
        return Signed(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{certificate}, {key}: expected the authority made here: {error}") from error


def make_files(directory: Path, hosts: Sequence[str], days: int, *, renew: bool) -> list[Path]:
    """Write all files of ``ALL_FILES``, readable by their owner alone.

    Args:
        directory: is made if it does not exist.
        hosts: names and addresses by which actors reach the learner.
        days: until the certificates expire.
        renew: keep the authority, if there is one, and put a new token before the newest old one of each role. The
            holders of both tokens are let in. Tokens with names stay. Without ``renew`` none of the files may exist.

    Raises:
        ConfigError: a file exists already, or cannot be read or written.
    """
    present = [name for name in ALL_FILES if (directory / name).exists()]
    if present and not renew:
        raise ConfigError(f"{directory}: expected none of these files, found {', '.join(present)}; replace: --renew")
    has_authority = any(name in present for name in AUTHORITY)
    authority = load_authority(directory) if has_authority else make_authority()
    contents: dict[str, bytes] = {} if has_authority else _pair("ca", authority)
    contents |= _pair("server", sign(authority, "learner", [*dict.fromkeys([*hosts, *ALWAYS_NAMED])], days))
    contents |= _pair("actor", sign(authority, "actor", days=days))
    contents |= {name: _new_tokens(directory / name) for name in TOKENS}
    return _write(directory, contents)


def _pair(name: str, signed: Signed) -> dict[str, bytes]:
    return {f"{name}.pem": signed.certificate_pem, f"{name}.key": signed.key_pem}


def _new_tokens(path: Path) -> bytes:
    """The token file at ``path`` renewed: a new token without a name, the newest old one, then all with names."""
    known = _tokens_of(path)
    unnamed = [token for token in known if token.name == UNNAMED]
    named = [token for token in known if token.name != UNNAMED]
    return format_tokens([_new_token(UNNAMED), *unnamed[:1], *named]).encode()


def _tokens_of(path: Path) -> tuple[Token, ...]:
    """The tokens of a file; none if there is no file, or if the last token in it was deleted."""
    is_empty = not path.exists() or not read_token_text(path).strip()
    return () if is_empty else TokenSource(f"token file {path}", path).read()


def _new_token(name: str) -> Token:
    return Token(name, secrets.token_urlsafe(32))


def add_token(directory: Path, role: str, name: str, *, renew: bool) -> list[Path]:
    """Make a token for a new holder: add it to the server's file, and write it to a file for the holder alone.

    Args:
        directory: of the server's files; it is made if it does not exist.
        role: a key of ``SERVERS_TOKENS``.
        name: of the holder.
        renew: the holder has a token and gets another; its newest old one stays valid. Without ``renew`` the holder
            must not have a token yet.

    Returns:
        The server's file, and the holder's, ``ROLEs/NAME.token``.

    Raises:
        ConfigError: the name is malformed or taken, or a file cannot be read or written.
    """
    if not is_name(name) or name == UNNAMED:
        raise ConfigError(f"name: expected up to {MAX_NAME} letters, digits, '.', '_' and '-', found '{name}'")
    path = directory / SERVERS_TOKENS[role]
    known = _tokens_of(path)
    before = [token for token in known if token.name == name]
    if before and not renew:
        raise ConfigError(f"{path}: expected no token of '{name}', found one; replace: --renew")
    added, others = _new_token(name), [token for token in known if token.name != name]
    shared = _write(directory, {path.name: format_tokens([*others, added, *before[:1]]).encode()})
    return [*shared, *_write(directory / f"{role}s", {f"{name}.token": format_tokens([added]).encode()})]


def hand_out(directory: Path, learners: Path | None, actors: Path | None) -> list[Path]:
    """Copy the files that the learner needs, and those that actors need, each to a separate directory.

    The learner's come first, so that the learner knows a new token before an actor sends it.

    Args:
        directory: of all files.
        learners: the directory for ``FOR_LEARNER``; None copies nothing.
        actors: the directory for ``FOR_ACTORS``, with no token but the token that actors send; None copies nothing.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    written = list[Path]()
    if learners is not None:
        written += _write(learners, _contents(directory, FOR_LEARNER))
    if actors is not None:
        token = format_tokens(_tokens_of(directory / "actor.token")[:1]).encode()
        written += _write(actors, {**_contents(directory, FOR_ACTORS), "actor.token": token})
    return written


def _contents(directory: Path, names: Sequence[str]) -> dict[str, bytes]:
    try:
        return {name: (directory / name).read_bytes() for name in names}
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error}; --host makes the files") from error


def _write(directory: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write all these files or, on a full disk, none of them: half an authority could be neither used nor renewed.

    Each is written to another name and renamed: a running learner may read a file at any time and must find it whole.
    """
    parts = {name: directory / f".{name}.part" for name in contents}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in contents.items():
            _write_private(parts[name], content)
        return [part.rename(directory / name) for name, part in parts.items()]
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from error
    finally:
        for part in parts.values():  # It may have a part of a private key.
            with suppress(OSError):
                part.unlink()


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
