"""Takes passwords, tokens and keys out of a configuration before others read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_KEY: Final = re.compile(
    r"(^|_|-)(pass(words?|wd|phrase)?|pwd?|pin|secrets?|tokens?|(api|access|private|secret|ssh)[_-]?keys?([_-]pem)?|credentials?"
    r"|authorization|auth|bearer|cookies?|headers|connection[_-]?string|dsn)$",
    re.IGNORECASE,
)
"""The end of a key whose value is a secret. The key of a file with a secret ends in ``_file``."""
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/\s]+(?=@)")
_SECRET_IN_TEXT: Final = re.compile(
    r"((?:^|[?&;\s])[\w-]*(?:pass(?:word|wd)?|pwd|token|secret|sig(?:nature)?|(?:api|access)[_-]?key)=)[^&;\s]+",
    re.IGNORECASE,
)


def mask_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested plain values with ``***`` in the place of secrets.

    Secrets are texts at any depth under a key such as ``password``, ``apiKey``, ``HF_TOKEN`` or ``headers``, the user
    and the password in a URL, and values such as ``token=…`` in the query of a URL or in a connection string.

    >>> mask_secrets({"api_key": "k", "uri": "https://me:pw@host/x", "token_file": "a.token", "n": [1, {"token": "t"}]})
    {'api_key': '***', 'uri': 'https://***@host/x', 'token_file': 'a.token', 'n': [1, {'token': '***'}]}
    """
    return {key: _masked(value, is_secret=_is_secret(str(key))) for key, value in values.items()}


def hide_user(url: str) -> str:
    """A URL whose user, password and secret parameters are masked."""
    return _SECRET_IN_TEXT.sub(rf"\1{MASK}", _USER_IN_URL.sub(MASK, url))


def _is_secret(key: str) -> bool:
    return _SECRET_KEY.search(_WORD_BEGINS.sub("_", key)) is not None


def _masked(value: Any, *, is_secret: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(each, is_secret=is_secret or _is_secret(str(key))) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, is_secret=is_secret) for each in value]
    if isinstance(value, str):
        return MASK if is_secret else hide_user(value)
    return value
