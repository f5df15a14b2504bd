"""Reads JSON and other nested texts whose depth is bounded, since the code that walks through the values recurses.

The numbers of a JSON text are finite and fit into 64 bits, unless a reader asks for ``ANY_NUMBER``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 100
"""Lists and mappings within each other; a configuration has about ten."""


ANY_NUMBER: Final = dict.fromkeys(("parse_constant", "parse_float", "parse_int"))
"""Hooks of ``parse_json`` that take NaN, infinity and integers of any size, as ``json.dumps`` writes them."""


def parse_json(text: str, **hooks: Any) -> Any:
    """The values of a JSON text.

    Args:
        text: of at most ``MAX_DEPTH`` lists and mappings within each other.
        hooks: as ``json.loads`` takes them.

    Raises:
        ValueError: it is no JSON, is nested deeper, or has a number that is not finite or needs more than 64 bits.
    """
    return bound_depth(partial(json.loads, text, **{**_NUMBERS, **hooks}))


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"expected finite numbers of at most 64 bits, found {text[:40]}")


def _parse_float(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse(text)


def _parse_int(text: str) -> int:
    return int(text) if len(text) <= _DIGITS and -(2**63) <= int(text) < 2**64 else _refuse(text)


_DIGITS: Final = 20  # Of 2**64.
_NUMBERS: Final = {"parse_constant": _refuse, "parse_float": _parse_float, "parse_int": _parse_int}


def bound_depth(parse: Callable[[], Any]) -> Any:
    """The values that ``parse`` returns; only if no more than ``MAX_DEPTH`` lists and mappings are within each other.

    Raises:
        ValueError: they are nested deeper, or hold themselves.
    """
    try:
        values = parse()
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [values]
    for _ in range(MAX_DEPTH):
        inside = (inner for each in level if isinstance(each, dict | list) for inner in _inside(each))
        level = list({id(inner): inner for inner in inside if isinstance(inner, dict | list)}.values())
        if not level:
            return values
    raise ValueError(_TOO_DEEP)


_TOO_DEEP: Final = f"expected at most {MAX_DEPTH} lists and mappings within each other, found more"


def _inside(values: dict[Any, Any] | list[Any]) -> Any:
    return values.values() if isinstance(values, dict) else values
