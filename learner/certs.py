"""A private authority, the certificates it signs, and tokens: what a group of hosts needs to trust each other.

Needs ``crossborder[certs]``. Made for development and closed networks; elsewhere bring certificates of your own.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import ConfigError
from common.tokens import read_tokens

AUTHORITY_DAYS = 3650
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")
"""The server's certificate is for these too: actors of its own host."""
AUTHORITY = ("ca.pem", "ca.key")
TOKENS = ("actor.token", "admin.token")
MADE = (*AUTHORITY, "server.pem", "server.key", "actor.pem", "actor.key", *TOKENS)
_BACKDATED = timedelta(hours=1)
"""Hosts whose clocks are behind accept a new certificate too."""


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


def make_authority(days: int = AUTHORITY_DAYS) -> Signed:
    """A new authority, which signs itself."""
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
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Signed(builder.sign(key, hashes.SHA256()), key)


def sign(authority: Signed, name: str, hosts: Sequence[str] = (), days: int = 365) -> Signed:
    """A certificate for both ends of TLS.

    Args:
        authority: signs it.
        name: its common name.
        hosts: host names and IP addresses it is valid for.
        days: until it expires; negative for one that has.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(name), authority.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
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
    until = now + timedelta(days=days)
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
        return x509.DNSName(host)


def load_authority(directory: Path) -> Signed:
    """The authority that ``make_files`` left there.

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
    """Write everything of ``MADE``, readable by its owner alone.

    Args:
        directory: made if need be.
        hosts: names and addresses by which actors reach the learner.
        days: until the certificates expire.
        renew: keep the authority that is there and put new tokens before the newest old ones, so that whoever holds
            either is let in; otherwise nothing of ``MADE`` may be there.

    Raises:
        ConfigError: something is there already, or cannot be read or written.
    """
    present = [name for name in MADE if (directory / name).exists()]
    if present and not renew:
        raise ConfigError(f"{directory}: expected none of these files, found {', '.join(present)}; replace: --renew")
    has_authority = any(name in present for name in AUTHORITY)
    authority = load_authority(directory) if has_authority else make_authority()
    contents: dict[str, bytes] = {} if has_authority else _pair("ca", authority)
    contents |= _pair("server", sign(authority, hosts[0], [*dict.fromkeys([*hosts, *ALWAYS_NAMED])], days))
    contents |= _pair("actor", sign(authority, "actor", days=days))
    contents |= {name: _new_tokens(directory / name) for name in TOKENS}
    return _write(directory, contents)


def _pair(name: str, signed: Signed) -> dict[str, bytes]:
    return {f"{name}.pem": signed.certificate_pem, f"{name}.key": signed.key_pem}


def _new_tokens(path: Path) -> bytes:
    newest = read_tokens(path)[:1] if path.exists() else ()
    return "".join(f"{token}\n" for token in (secrets.token_urlsafe(32), *newest)).encode()


def _write(directory: Path, contents: Mapping[str, bytes]) -> list[Path]:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [_write_private(directory / name, content) for name, content in contents.items()]
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from error


def _write_private(path: Path, content: bytes) -> Path:
    """Whole or not at all: a running learner may be reading."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    return part.rename(path)
