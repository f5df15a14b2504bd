"""Bearer tokens: from a file or the environment, never from a command line; compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from common.errors import ConfigError
from common.watched import Watched

ACTOR_VARIABLE = "CROSSBORDER_TOKEN"
ADMIN_VARIABLE = "CROSSBORDER_ADMIN_TOKEN"
_TOKEN = re.compile(r"[\x21-\x7e]{16,}")


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; whoever sends one sends the first, whoever checks one takes any.

    Raises:
        ConfigError: there is none, or one is too short; tokens themselves are never shown.
    """
    try:
        text = path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token file {path}: cannot be read: {error}") from None
    return _parse(text, f"token file {path}")


def _parse(text: str, where: str) -> tuple[str, ...]:
    tokens = tuple(text.split())
    if not tokens:
        raise ConfigError(f"{where}: expected one token per line, found none")
    for number, token in enumerate(tokens, 1):
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{where}: token {number}: expected 16 or more printable ASCII characters, found {len(token)}"
            )
    return tokens


class Tokens:
    """The tokens that are valid now. A file is read again when it changes, so two at once rotate without a gap."""

    def __init__(self, current: Callable[[], tuple[str, ...]]) -> None:
        self._current = current

    @classmethod
    def find(cls, path: Path | None, variable: str, environment: Mapping[str, str] = os.environ) -> Tokens | None:
        """Those of ``path``, of the file that ``{variable}_FILE`` names, or in ``variable`` itself; None without any.

        Raises:
            ConfigError: the first of these that is given holds no valid tokens.
        """
        file = path or environment.get(f"{variable}_FILE")
        if file:
            return cls(Watched([Path(file)], partial(read_tokens, Path(file))).get)
        if variable in environment:
            given = _parse(environment[variable], variable)
            return cls(lambda: given)
        return None

    def first(self) -> str:
        """The one to send."""
        return self._current()[0]

    def accept(self, given: str) -> bool:
        """Whether ``given`` is one of them; takes as long for one that is nearly right as for any other."""
        wanted = _digest(given)
        return any([hmac.compare_digest(_digest(token), wanted) for token in self._current()])  # noqa: C419 - all of them


def _digest(token: str) -> bytes:
    """Of equal length for all, so that not even the length shows."""
    return hashlib.sha256(token.encode()).digest()
