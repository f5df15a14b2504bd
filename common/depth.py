"""Reads JSON and other nested texts whose depth is bounded, since the code that walks through the values recurses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Lists and mappings within each other; a configuration has about ten."""


def parse_json(text: str, **hooks: Any) -> Any:
    """The values of a JSON text.

    Args:
        text: of at most ``MAX_DEPTH`` lists and mappings within each other.
        hooks: as ``json.loads`` takes them.

    Raises:
        ValueError: it is no JSON, or it is nested deeper.
    """
    return bound_depth(partial(json.loads, text, **hooks))


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
