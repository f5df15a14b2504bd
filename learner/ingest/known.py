"""The tokens that a learner accepts now: a token that is taken out of its file is refused within a second."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from common.errors import ConfigError
from common.wire.tokens import Token, TokenSource, parse_tokens, read_token_text
from common.wire.watched import stamp_of

log = logging.getLogger(__name__)
SETTLE_SECONDS = 0.5
"""A file without a token counts after this time: an editor that writes in place empties it for a moment."""


def digest_of(secret: str) -> bytes:
    """What is kept of a secret and compared: the time that a look-up takes tells nothing about the secret."""
    return hashlib.sha256(secret.encode()).digest()


class KnownTokens:
    """Names of callers by their tokens, as the source stands.

    A changed file is read again; lines that hold no token are logged and left out. A file without any token, or none at
    all, refuses everybody. (``Watched`` keeps the last good value instead: right for certificates, not for tokens.)

    Args:
        source: a file, or tokens given once.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the source cannot be used at the start.
    """

    def __init__(self, source: TokenSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = source.path, clock
        self._stamp = stamp_of(source.path) if source.path else None
        self._use(source.read())
        self._read: tuple[Token, ...] | None = None
        """Read from a changed file, and not in use yet."""
        self._read_at = 0.0

    def _use(self, tokens: Iterable[Token]) -> None:
        self._names = {digest_of(token.secret): token.name for token in tokens}

    def __contains__(self, digest: bytes) -> bool:
        """Whether the token with this digest was valid when the source was last looked at; looks at no file."""
        return digest in self._names

    def name_of(self, digest: bytes) -> str | None:
        """Who holds the token with this digest; None: the token is not valid."""
        self._refresh()
        return self._names.get(digest)

    def names(self) -> frozenset[str]:
        """All holders of valid tokens."""
        self._refresh()
        return frozenset(self._names.values())

    def _refresh(self) -> None:
        if self._path is None:
            return
        stamp = stamp_of(self._path)
        if stamp != self._stamp:  # Looked at before reading: what is written meanwhile shows as one more change.
            self._stamp, self._read, self._read_at = stamp, _read_leniently(self._path), self._clock()
        if self._read is not None and (self._read or self._clock() >= self._read_at + SETTLE_SECONDS):
            self._use(self._read)
            self._tell(self._path)
            self._read = None

    def _tell(self, path: Path) -> None:
        if self._names:
            log.info("token file %s: read again: %d tokens", path, len(self._names))
        else:
            log.error("token file %s: it holds no token, so every caller is refused until it does", path)


def _read_leniently(path: Path) -> tuple[Token, ...]:
    """The tokens of all lines that hold one: a mistake in one line must not throw out the holders of the others."""
    try:
        tokens, problems = parse_tokens(read_token_text(path))
    except ConfigError as error:
        log.error("%s", error)
        return ()
    for problem in problems:
        log.error("token file %s: %s; the line is left out", path, problem)
    return tokens
