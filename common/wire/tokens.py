"""Bearer tokens: from a file or the environment, never from a command line.

A file holds one token a line, ``NAME TOKEN`` or ``TOKEN`` alone. A caller sends the first token of its file. A learner
accepts every token of its file, and identifies callers by the names.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigError
from common.home import expand_path, read_regular
from common.wire.watched import Watched

log = logging.getLogger(__name__)
ACTOR_VARIABLE = "CROSSBORDER_TOKEN"
ADMIN_VARIABLE = "CROSSBORDER_ADMIN_TOKEN"
CLIENT_VARIABLE = "CROSSBORDER_CLIENT_TOKEN"
"""Of a client of an acting service."""
UNNAMED = "unnamed"
"""The name of a token that stands alone on its line."""
WITHOUT_NAME = ("", UNNAMED)
"""The names of callers without a token, and with a token that has no name: they cannot be told from each other."""
MAX_NAME = 32
_SECRET = re.compile(r"[\x21-\x7e]{16,}")
_NAME = re.compile(rf"(?!\d+(?:\.\d+){{3}}$)[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")


@dataclass(frozen=True)
class Token:
    """A secret, and the name of the caller who holds it."""

    name: str
    secret: str = field(repr=False)


def is_name(text: str) -> bool:
    """Whether a token may have this name: up to 32 letters, digits, ``.``, ``_`` and ``-``, but no IP address.

    Limits count callers without a name by their addresses: a name that is an address would be counted with them.
    """
    return _NAME.fullmatch(text) is not None


def parse_tokens(text: str) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """The tokens of a text, and a message for each line that holds no token. Messages never contain a secret.

    A secret under two names is no token of either: nobody knows who sends it.
    """
    tokens, problems, doubtful = dict[str, Token](), list[str](), set[str]()
    for number, words in enumerate(map(str.split, text.splitlines()), 1):
        if not words:
            continue
        problem = _find_problem(words, tokens)
        if problem:
            problems.append(f"line {number}: {problem}")
            doubtful |= {words[-1]} & tokens.keys()
        else:
            tokens[words[-1]] = Token(words[0] if len(words) == 2 else UNNAMED, words[-1])
    return tuple(token for secret, token in tokens.items() if secret not in doubtful), tuple(problems)


def _find_problem(words: list[str], known: Mapping[str, Token]) -> str | None:
    """Why the words of a line hold no token, or None if they hold one."""
    secret = words[-1]
    if len(words) > 2:
        return f"expected a name and a token, or a token alone, found {len(words)} words"
    if len(words) == 2 and not is_name(words[0]):
        return (
            f"expected a name of up to {MAX_NAME} letters, digits, '.', '_' and '-', found an address or another word"
        )
    if not _SECRET.fullmatch(secret):
        return f"expected a token of 16 or more printable ASCII characters, found {len(secret)}"
    if secret in known and known[secret].name != (words[0] if len(words) == 2 else UNNAMED):
        return f"expected another token than that of '{known[secret].name}', found the same: it is the token of neither"
    return None


def read_token_text(path: Path) -> str:
    """The text of a token file. Logs a warning if every user of this host can read the file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = read_regular(path).decode("ascii")
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"token file {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"token file {path}: cannot be read: {error}") from None
    if mode & stat.S_IROTH:
        log.warning("token file %s: every user of this host can read it; chmod 600 %s", path, path)
    return text


@dataclass(frozen=True)
class TokenSource:
    """The place that tokens are read from."""

    where: str
    path: Path | None
    text: str = field(default="", repr=False)

    @classmethod
    def find(cls, path: Path | None, variable: str, environment: Mapping[str, str] = os.environ) -> TokenSource | None:
        """``path``, else the file that ``{variable}_FILE`` names, else the value of ``variable``; None without any."""
        file = path or environment.get(f"{variable}_FILE")
        if file:
            expanded = expand_path(file, f"{variable}_FILE")
            return cls(f"token file {expanded}", expanded)
        return cls(variable, None, environment[variable]) if variable in environment else None

    def read(self) -> tuple[Token, ...]:
        """All tokens, at least one.

        Raises:
            ConfigError: the file cannot be read, it holds no token, or a line holds something else than a token.
        """
        tokens, problems = parse_tokens(read_token_text(self.path) if self.path else self.text)
        if problems or not tokens:
            raise ConfigError(f"{self.where}: {next(iter(problems), 'expected one token per line, found none')}")
        return tokens

    def watch(self) -> Watched[tuple[Token, ...]]:
        """All tokens. A file is read again when it changes; if it then holds no tokens, the old tokens stay."""
        return Watched([self.path] if self.path else [], self.read)


def format_tokens(tokens: Iterable[Token]) -> str:
    """The text of a token file."""
    return "".join(("" if token.name == UNNAMED else f"{token.name} ") + f"{token.secret}\n" for token in tokens)


def authorization(token: str) -> tuple[str, str]:
    """The metadata entry that carries a token (RFC 6750, section 2.1)."""
    return "authorization", f"Bearer {token}"


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token in metadata, or an empty string. The case of the scheme does not matter (RFC 9110, section 11.1)."""
    given = next((str(value) for key, value in metadata if key == "authorization"), "")
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
