"""Certificates in PEM files. They are checked before gRPC gets them: gRPC would only say that a handshake failed."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from common.errors import ConfigError
from common.home import read_regular


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """A private key and the chain of its certificate, in gRPC's order.

    Raises:
        ConfigError: a file cannot be read, or the key does not belong to the certificate.
    """
    pair = _read(key, "private key"), _read(certificate, "certificate")
    try:
        # An empty password: without it, OpenSSL would ask the terminal for the password of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"certificate {certificate}: expected PEM with its unencrypted key in {key}: {error}"
        ) from error
    return pair


def read_authorities(path: Path) -> bytes:
    """The certificates of the authorities that must have issued the certificate of the other side.

    Raises:
        ConfigError: the file cannot be read.
    """
    data = _read(path, "CA file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"CA file {path}: expected certificates in PEM: {error}") from error
    return data


def read_expiry(certificate: Path) -> float | None:
    """When the first certificate of a PEM file expires, in Unix seconds; None if the file cannot be read."""
    try:
        # Python decodes the certificate of a peer only; this is the function by which its own tests decode files.
        decoded = ssl._ssl._test_decode_cert(certificate)  # type: ignore[attr-defined]
    except (OSError, ssl.SSLError):
        return None
    return float(ssl.cert_time_to_seconds(decoded["notAfter"]))


def hint_at_expiry(certificate: Path | None) -> str:
    """For a message of this process about a connection that failed: its own certificate has expired; or ``""``.

    The other side tells nobody why it hangs up.
    """
    expiry = None if certificate is None else read_expiry(certificate)
    if expiry is None or expiry > time.time():
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expiry))
    return f"; this side's own certificate, {certificate}, expired at {at}"


def _read(path: Path, kind: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ConfigError(f"{kind} {path}: cannot be read: {error.strerror}") from error
