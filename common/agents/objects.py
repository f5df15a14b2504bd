"""Objects of one kind among the attributes of another object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

KindT = TypeVar("KindT")


def objects_of(kind: type[KindT], named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, KindT]]:
    """The objects of a kind by name, also those in lists, tuples and dicts, as ``NAME.KEY``."""
    for name, value in named:
        if isinstance(value, kind):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from objects_of(kind, ((f"{name}.{i}", entry) for i, entry in enumerate(value)))
        elif isinstance(value, dict):
            yield from objects_of(kind, ((f"{name}.{key}", entry) for key, entry in value.items()))
