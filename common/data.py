"""The data that travels between actors and the learner: items, their schema, models and records.

Items are ``dict[str, np.ndarray]`` with a leading dimension, so replay, codec and agents need no code for single types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, SupportsFloat

import numpy as np

from common.domain import Domain
from common.errors import ConfigError, SchemaMismatchError

_NDARRAY = np.ndarray  # A global name is found faster than an attribute, and this one is used for each column.
Array = np.ndarray[Any, np.dtype[Any]]
Items = dict[str, Array]
"""Named columns; every array is ``[n, *shape]`` with the same ``n``."""

Record = dict[str, SupportsFloat]
"""Named scalars of one optimisation step; a value may be a 0-d tensor, read only when it is recorded."""


@dataclass(frozen=True)
class Column:
    """One column of an item: ``dtype`` is numpy's little-endian name (``<f4``), ``shape`` has no leading dimension.

    With ``frames``, the first axis holds frames, most of which are also in neighbouring items. Each frame is then sent
    and stored once, and the column holds positions (``packed``). Only the wire and the replay know of this form;
    everywhere else items hold whole stacks of frames.

    ``domain`` says which finite values the column may hold; None allows all values of its dtype. It stays on the
    learner's host and is not compared: columns that differ only in their domains are equal.

    Raises:
        ConfigError: ``frames`` is set, but the shape has no frames along its first axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    frames: bool = False
    domain: Domain | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.frames and (len(self.shape) < 2 or not self.row_bytes):
            raise ConfigError(
                f"column '{self.name}': expected frames along its first axis, found shape {list(self.shape)}"
            )

    @staticmethod
    def of(name: str, dtype: np.dtype[Any] | type, shape: tuple[int, ...] = (), domain: Domain | None = None) -> Column:
        """A column of any numpy dtype with a fixed size.

        Raises:
            ConfigError: the dtype cannot travel (objects, text, structures).
        """
        found = np.dtype(dtype)
        if found.kind not in "fiub":
            raise ConfigError(f"column '{name}': expected a float, integer or bool dtype, found {found}")
        return Column(name, found.newbyteorder("<").str, tuple(int(n) for n in shape), domain=domain)

    @cached_property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    @cached_property
    def packed(self) -> Column:
        """The column on the wire and in the replay: a column of frames holds their positions instead."""
        return Column(self.name, "<u4", self.shape[:1]) if self.frames else self

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}" + " frames" * self.frames

    def to_json(self) -> dict[str, Any]:
        domain = self.domain.to_json() if self.domain else None
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "frames": self.frames,
            "domain": domain,
        }

    @staticmethod
    def from_json(column: dict[str, Any]) -> Column:
        """The column of which ``to_json`` was made; an earlier release wrote no ``domain``."""
        domain, dtype = column.get("domain"), column["dtype"]
        return Column(
            column["name"],
            dtype,
            tuple(column["shape"]),
            column["frames"],
            Domain.from_json(domain, dtype) if domain else None,
        )


@dataclass(frozen=True)
class Schema:
    """The columns of an item in wire order."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"schema: expected at least one column and distinct names, found {names}")
        if len({(column.dtype, column.shape[1:]) for column in self.frame_columns}) > 1:
            found = ", ".join(map(str, self.frame_columns))
            raise ConfigError(f"schema: expected frames of one dtype and shape, found {found}; make one frames=False")

    @cached_property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns)

    def plus(self, column: Column) -> Schema:
        """A schema with one more column, the last.

        Raises:
            ConfigError: there is a column of this name already.
        """
        if column.name in self._names:
            raise ConfigError(f"column '{column.name}': the name is reserved, found it among {sorted(self._names)}")
        return Schema((*self.columns, column))

    def without(self, column: Column) -> Schema:
        """A schema without this column."""
        return Schema(tuple(c for c in self.columns if c != column))

    @cached_property
    def frame_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.frames)

    @cached_property
    def frame(self) -> Column | None:
        """One frame as a column, the same for all frame columns; None without frame columns."""
        columns = self.frame_columns
        if not columns:
            return None
        domain = Domain.shared([column.domain for column in columns])
        return Column("frames", columns[0].dtype, columns[0].shape[1:], domain=domain)

    @cached_property
    def float_columns(self) -> dict[str, Column]:
        """Columns of the wire that could hold NaN, by name; the frames of all columns are one column ``frames``."""
        columns = (*(column.packed for column in self.columns), *([self.frame] if self.frame else []))
        return {column.name: column for column in columns if np.dtype(column.dtype).kind == "f"}

    @cached_property
    def bounded_columns(self) -> dict[str, Column]:
        """Columns of the wire with a domain, by name; the frames of all columns are one column ``frames``."""
        columns = (*(column.packed for column in self.columns), *([self.frame] if self.frame else []))
        return {column.name: column for column in columns if column.domain is not None}

    @cached_property
    def max_frames(self) -> int:
        """The most different frames that one item can hold."""
        return sum(column.shape[0] for column in self.frame_columns)

    @cached_property
    def packed_row_bytes(self) -> int:
        """The bytes of a packed row, without its frames."""
        return sum(column.packed.row_bytes for column in self.columns)

    @cached_property
    def max_packed_bytes(self) -> int:
        """The most bytes that one item adds to a payload: those of an item that shares no frame with another."""
        return self.packed_row_bytes + (self.max_frames * self.frame.row_bytes if self.frame else 0)

    @cached_property
    def hash(self) -> int:
        """The first 8 bytes of the SHA-256 of all columns, as the .proto file defines it."""
        text = "".join(f"{c.name}:{c.dtype}:{','.join(map(str, c.shape))}{':frames' * c.frames};" for c in self.columns)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def empty(self, rows: int) -> Items:
        """Uninitialised items with the leading dimension ``rows``."""
        return {c.name: np.empty((rows, *c.shape), c.dtype) for c in self.columns}

    def count(self, items: Items) -> int:
        """The number of items, after checking that they fit the schema.

        Raises:
            SchemaMismatchError: naming the column, the expected and the found array.
        """
        # Nearly all calls are for a single item. Comparing whole shapes takes a third of the time of ``_count_any``.
        if len(items) == len(self._one):
            for name, dtype, shape in self._one:
                found = items.get(name)
                if type(found) is not _NDARRAY or found.dtype is not dtype or found.shape != shape:
                    break
            else:
                return 1
        return self._count_any(items)

    def _count_any(self, items: Items) -> int:
        if items.keys() != self._names:
            raise SchemaMismatchError(f"items: expected columns {[c.name for c in self.columns]}, found {list(items)}")
        rows = -1
        for column, (name, dtype, _) in zip(self.columns, self._one, strict=True):
            found = items[name]
            if not isinstance(found, np.ndarray) or not found.ndim:
                raise SchemaMismatchError(f"column '{name}': expected an array with rows, found {found!r}")
            rows = len(found) if rows < 0 else rows
            if found.shape != (rows, *column.shape) or found.dtype != dtype:
                raise SchemaMismatchError(
                    f"column '{name}': expected {column.dtype} [{rows}, *{list(column.shape)}], "
                    f"found {found.dtype.str} {list(found.shape)}"
                )
        return rows

    @cached_property
    def _one(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        return [(column.name, np.dtype(column.dtype), (1, *column.shape)) for column in self.columns]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)

    def require_equal(self, other: Schema, mine: str, theirs: str) -> None:
        """Compare two schemas.

        Raises:
            SchemaMismatchError: naming the first column that differs.
        """
        for index in range(max(len(self.columns), len(other.columns))):
            here = str(self.columns[index]) if index < len(self.columns) else "nothing"
            there = str(other.columns[index]) if index < len(other.columns) else "nothing"
            if here != there:
                raise SchemaMismatchError(f"column {index}: {theirs} expects {there}, {mine} has {here}")

    def to_json(self) -> list[dict[str, Any]]:
        return [column.to_json() for column in self.columns]

    @staticmethod
    def from_json(columns: list[dict[str, Any]]) -> Schema:
        """The schema of which ``to_json`` was made."""
        return Schema(tuple(Column.from_json(column) for column in columns))


@dataclass(frozen=True)
class Snapshot:
    """The state of one part of a run, from which a resumed run goes on."""

    values: Mapping[str, Any]
    """Values that JSON can hold."""
    arrays: Mapping[str, Array] = field(default_factory=dict)


PRIORITY = Column.of("priority", np.float32, domain=Domain.between(0, np.inf, np.float32))
"""The column |TD error| that an actor adds to its items with ``push.initial_priorities``."""


class ModelVersion(NamedTuple):
    """A model's version, ordered by incarnation, then opt steps; an actor adopts only strictly greater versions."""

    incarnation: int
    opt_steps: int


NO_MODEL = ModelVersion(0, 0)
MAX_EPISODES = 4096
"""The most episodes in one message."""
ENVELOPE_BYTES = 1024 + 13 * MAX_EPISODES
"""The most bytes that a message of items holds besides the items."""
MAX_ENV_ERROR = 4096
"""The most characters of an environment's traceback that a learner logs."""


@dataclass(frozen=True)
class Model:
    """The parameters that an actor needs to act, and their version: border's ``ModelInfo``."""

    version: ModelVersion
    params: Mapping[str, Array] = field(repr=False)
