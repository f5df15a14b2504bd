"""Takes passwords, tokens and keys out of a configuration before others read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"
_SECRET_KEY: Final = re.compile(
    r"(^|_|-)(pass(word|wd|phrase)?|secrets?|token|(api|access|private)[_-]?key|credentials?|authorization|auth)$",
    re.IGNORECASE,
)
"""The end of a key whose value is a secret. The key of a file with a secret ends in ``_file``."""
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/\s]+(?=@)")


def mask_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested plain values with ``***`` in the place of secrets.

    Secrets are texts under a key such as ``password``, ``api_key`` or ``HF_TOKEN``, and the user and the password in a
    URL.

    >>> mask_secrets({"api_key": "k", "uri": "https://me:pw@host/x", "token_file": "a.token", "n": [1, {"token": "t"}]})
    {'api_key': '***', 'uri': 'https://***@host/x', 'token_file': 'a.token', 'n': [1, {'token': '***'}]}
    """
    return {key: _masked(value, is_secret=_SECRET_KEY.search(str(key)) is not None) for key, value in values.items()}


def hide_user(url: str) -> str:
    """A URL whose user and password are masked."""
    return _USER_IN_URL.sub(MASK, url)


def _masked(value: Any, *, is_secret: bool) -> Any:
    if isinstance(value, Mapping):
        return mask_secrets(value)
    if isinstance(value, list | tuple):
        return [_masked(each, is_secret=is_secret) for each in value]
    if isinstance(value, str):
        return MASK if is_secret else hide_user(value)
    return value
