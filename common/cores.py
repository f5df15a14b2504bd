"""The cores of this host that a process may use. A core is what Linux calls a CPU, so two may share a physical core."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from common.errors import ConfigError
from common.system import bind_threads, usable_cores

log = logging.getLogger(__name__)
_PART: Final = re.compile(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*")


def read_cores(text: object) -> tuple[int, ...]:
    """The cores of a list such as ``0-3,8``, in ascending order. YAML reads the list of one core as a number.

    Raises:
        ValueError: it is no such list.
    """
    found = set[int]()
    for part in str(text).split(","):
        match = _PART.fullmatch(part)
        cores = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not cores:
            raise ValueError(f"expected a list of cores such as 0-3,8, found '{text}'")
        found.update(cores)
    return tuple(sorted(found))


def write_cores(cores: Sequence[int]) -> str:
    """The list of these cores, given in ascending order, in the form that ``read_cores`` reads."""
    parts = []
    for _, group in groupby(enumerate(cores), lambda place: place[1] - place[0]):
        run = [core for _, core in group]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ",".join(parts)


Cores = Annotated[
    tuple[int, ...], BeforeValidator(read_cores), PlainSerializer(write_cores), WithJsonSchema({"type": "string"})
]
"""Numbers of cores in ascending order; a configuration has them as Linux lists them, such as ``0-3,8``."""


def require_usable(cores: Sequence[int], setting: str) -> None:
    """Check that this process may use cores.

    Raises:
        ConfigError: it may not use all of them, they do not exist, or this system binds no process to cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(f"{setting}: expected Linux, which can bind a process to cores, found {sys.platform}")
    usable = usable_cores()
    if not set(cores) <= set(usable):
        raise ConfigError(
            f"{setting}: expected some of the cores that this process may use ({write_cores(usable)}), found "
            f"{write_cores(cores)}"
        )


def bind(cores: Sequence[int]) -> None:
    """Let this process, with all its threads, use these cores only; later threads and children inherit this.

    A child may use other cores than it inherits, so it does not compare them: its parent calls ``require_usable``.

    Raises:
        OSError: the host has none of these cores, or its cgroup allows none.
    """
    bind_threads(cores)
    log.info("bound to cores: %s", write_cores(cores))


@contextlib.contextmanager
def bound_to(cores: Sequence[int] | None, setting: str) -> Iterator[tuple[int, ...]]:
    """A context in which this process uses these cores only; it gives those that are left to other processes.

    None binds nothing, and nothing is left.
    """
    if cores is None:
        yield ()
        return
    require_usable(cores, setting)
    before = usable_cores()
    bind(cores)
    try:
        yield tuple(sorted({*before} - {*cores}))
    finally:
        bind_threads(before)


def divide_cores(cores: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Divide cores among ``n`` processes, as equally as possible; with fewer cores than processes, some share a core.

    Args:
        cores: in ascending order; without any, each process gets none.
        n: at least 1.
    """
    if len(cores) < n:
        return [(cores[i % len(cores)],) if cores else () for i in range(n)]
    ends = [i * len(cores) // n for i in range(n + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(ends)]
