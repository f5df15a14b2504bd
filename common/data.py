"""The data that travels between actors and the learner: rows and items, their schema, models and records.

Rows and items are ``dict[str, np.ndarray]`` with a leading dimension, so replay, codec and agents need no code for
single types. A column of a structured space is named by its path: ``obs/camera``, ``action/gripper``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, SupportsFloat

import numpy as np

from common.domain import Domain
from common.errors import ConfigError, PluginError, SchemaMismatchError, show

_NDARRAY = np.ndarray  # A global name is found faster than an attribute, and this one is used for each column.
Array = np.ndarray[Any, np.dtype[Any]]
Items = dict[str, Array]
"""Named columns; every array is ``[n, *shape]`` with the same ``n``."""
Leaves = Array | dict[str, Array]
"""Observations or actions of n lanes: one array ``[n, *shape]``; for a Dict or Tuple space one array for each leaf,
by the leaf's path (``camera``, ``arm/joints``)."""
PICTURE_BYTES: Final = 1024
"""A column of bytes whose rows are at least this large counts as pictures."""

Record = dict[str, SupportsFloat]
"""Named scalars of one optimisation step; a value may be a 0-d tensor, read only when it is recorded."""
RUN_KEYS: Final = frozenset(
    {"opt_steps", "seconds", "samples_total", "opt_steps_per_sec", "samples_per_sec", "samples_per_opt_steps"}
    | {"train_return", "train_length", "train_intervened", "train_success", "pool_win_rate", "pool_rating"}
)
"""Keys that the learner itself adds to records: no part may use them."""
EVAL_KEYS: Final = frozenset(
    {
        "eval_reward",
        "eval_reward_std",
        "eval_reward_min",
        "eval_reward_max",
        "eval_score",
        "eval_wins",
        "eval_draws",
        "eval_losses",
    }
)
"""Keys of evaluations: an agent may not use them."""


NO_NUMBER: Final = (OverflowError, TypeError, ValueError, RuntimeError)
"""What ``float`` raises if a value is no number."""


def require_record(record: object, where: str, taken: Container[str]) -> None:
    """Check a record that a part gave. Values of tensors on a GPU are read, which waits for the GPU.

    Args:
        record: what the part gave.
        where: the method that gave it, for the error.
        taken: keys that the part may not use, because its value would replace another one.

    Raises:
        PluginError: it is no mapping of names to numbers, or has a key that is taken.
    """
    if not isinstance(record, Mapping):
        raise PluginError(f"{where}: expected a dict of names and numbers, found {type(record).__name__}")
    for key, value in record.items():
        if not isinstance(key, str) or not key or key in taken:
            raise PluginError(f"{where}: expected a name that the learner does not use itself as key, found {key!r}")
        try:
            float(value)
        except NO_NUMBER as error:
            raise PluginError(f"{where}: {key}: expected a number, found {show(value)}") from error


def to_json(values: object, where: str) -> str:
    """Write values as JSON; ``where``: the part and its method that gave them, for the error.

    Raises:
        PluginError: JSON cannot hold them.
    """
    try:
        return json.dumps(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(f"{where}: expected values that JSON can hold: {error}, found {values!r:.80}") from error


@dataclass(frozen=True)
class Column:
    """One column: ``dtype`` is numpy's little-endian name (``<f4``), ``shape`` has no leading dimension.

    ``domain`` says which finite values the column may hold; None allows all values of its dtype. It stays on the
    learner's host and is not compared: columns that differ only in their domains are equal.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    domain: Domain | None = field(default=None, compare=False, repr=False)

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
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @cached_property
    def row_bytes(self) -> int:
        return int(self.numpy_dtype.itemsize * np.prod(self.shape, dtype=np.int64))

    @property
    def is_picture(self) -> bool:
        """Whether the column holds bytes of pictures, which shrink when they are compressed."""
        return self.dtype == "|u1" and self.row_bytes >= PICTURE_BYTES

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {list(self.shape)}"

    def to_json(self) -> dict[str, Any]:
        domain = self.domain.to_json() if self.domain else None
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "domain": domain,
        }

    @staticmethod
    def from_json(column: dict[str, Any]) -> Column:
        """The column that ``to_json`` wrote; columns of a message have no ``domain``.

        Raises:
            ValueError: the name, the dtype or the shape is none.
            LookupError, TypeError: an entry is missing, or is of another kind.
        """
        name, dtype, shape, domain = column["name"], column["dtype"], tuple(column["shape"]), column.get("domain")
        is_shape = all(type(size) is int and size >= 0 for size in shape)
        try:
            is_column = isinstance(name, str) and np.dtype(dtype).kind in "fiub" and is_shape
        except SyntaxError:  # numpy reads ",f4" as Python.
            is_column = False
        if not is_column:
            raise ValueError(f"expected the name, the dtype and the shape of a column, found {column}")
        return Column(name, dtype, shape, Domain.from_json(domain, dtype) if domain else None)


VERSION: Final = Column.of("version", np.uint32)
"""Opt steps of the model that chose the row's action."""
FIRST: Final = Column.of("first", np.bool_)
"""The row begins an episode."""
FINAL: Final = Column.of("final", np.bool_)
"""A final row: it ends an episode and holds only the observation after the last action."""
LANE: Final = Column.of("lane", np.uint16)
"""The number of the row's lane in its actor; rows of one lane come in the order of time."""
ROW_COLUMNS: Final = (VERSION, FIRST, FINAL, LANE)
"""The last columns of every schema of rows."""


@dataclass(frozen=True)
class Schema:
    """The columns of rows, or of self-contained items, in wire order.

    A **row** is one lane at one time step: the observation before the action, the action, and its outcome. Its last
    columns are ``ROW_COLUMNS``, and the learner links it to the next row of its lane. An **item** of a user's own
    ``StepProcessor`` may have any other columns, and has no links.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"schema: expected at least one column and distinct names, found {names}")
        if not self.is_rows and (reserved := self._names & {column.name for column in ROW_COLUMNS}):
            raise ConfigError(f"schema: expected other names than those of rows, found {sorted(reserved)}")

    @classmethod
    def of_rows(cls, columns: Iterable[Column]) -> Schema:
        """The schema of rows with these columns, which are followed by ``ROW_COLUMNS``."""
        return cls((*columns, *ROW_COLUMNS))

    @cached_property
    def is_rows(self) -> bool:
        """Whether this describes rows, which are linked, and not self-contained items."""
        return self.columns[-len(ROW_COLUMNS) :] == ROW_COLUMNS

    @cached_property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns)

    @cached_property
    def has_pictures(self) -> bool:
        """Whether a column holds pictures, so that compression pays."""
        return any(column.is_picture for column in self.columns)

    def plus(self, column: Column) -> Schema:
        """A schema with one more column at the end; in a schema of rows, the column stands before ``ROW_COLUMNS``.

        Raises:
            ConfigError: there is a column of this name already.
        """
        if column.name in self._names:
            raise ConfigError(f"column '{column.name}': the name is reserved, found it among {sorted(self._names)}")
        if not self.is_rows:
            return Schema((*self.columns, column))
        return Schema.of_rows((*self.columns[: -len(ROW_COLUMNS)], column))

    def without(self, column: Column) -> Schema:
        """A schema without this column."""
        return Schema(tuple(c for c in self.columns if c != column))

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    def named(self, prefix: str) -> tuple[Column, ...]:
        """The columns called ``prefix`` or ``prefix/…``: the leaves of one space."""
        return tuple(c for c in self.columns if c.name == prefix or c.name.startswith(f"{prefix}/"))

    @cached_property
    def float_columns(self) -> dict[str, Column]:
        """Columns that could hold NaN, by name."""
        return {column.name: column for column in self.columns if np.dtype(column.dtype).kind == "f"}

    @cached_property
    def bounded_columns(self) -> dict[str, Column]:
        """Columns with a domain, by name."""
        return {column.name: column for column in self.columns if column.domain is not None}

    @cached_property
    def hash(self) -> int:
        """The first 8 bytes of the SHA-256 of all columns, as the .proto file defines it."""
        text = "".join(f"{c.name}:{c.dtype}:{','.join(map(str, c.shape))};" for c in self.columns)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def empty(self, rows: int) -> Items:
        """Uninitialised items with the leading dimension ``rows``."""
        return {c.name: np.empty((rows, *c.shape), c.dtype) for c in self.columns}

    def count(self, items: Items) -> int:
        """The number of items, after checking that they fit the schema.

        Raises:
            SchemaMismatchError: naming the column, the expected and the found array.
        """
        # For items that fit, this takes a third of the time of ``_count_any``, which finds out why other items do not.
        rows: tuple[int, ...] = getattr(items.get(self.columns[0].name), "shape", ())[:1]
        if rows and len(items) == len(self._kinds):
            for name, dtype, shape in self._kinds:
                found = items.get(name)
                if type(found) is not _NDARRAY or found.dtype is not dtype or found.shape != rows + shape:
                    break
            else:
                return rows[0]
        return self._count_any(items)

    def _count_any(self, items: Items) -> int:
        if items.keys() != self._names:
            raise SchemaMismatchError(f"items: expected columns {[c.name for c in self.columns]}, found {list(items)}")
        rows = -1
        for column, (name, dtype, _) in zip(self.columns, self._kinds, strict=True):
            found = items[name]
            if not isinstance(found, np.ndarray) or not found.ndim:
                raise SchemaMismatchError(f"column '{name}': expected an array with rows, found {found!r}")
            rows = len(found) if rows < 0 else rows
            if found.shape != (rows, *column.shape) or found.dtype != dtype:
                raise SchemaMismatchError(
                    f"column '{name}': expected {column.dtype} {[rows, *column.shape]}, "
                    f"found {found.dtype.str} {list(found.shape)}"
                )
        return rows

    @cached_property
    def _kinds(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        return [(column.name, column.numpy_dtype, column.shape) for column in self.columns]

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
        """The schema that ``to_json`` wrote."""
        return Schema(tuple(Column.from_json(column) for column in columns))


@dataclass(frozen=True)
class Snapshot:
    """The state of one part of a run, from which a resumed run goes on."""

    values: Mapping[str, Any]
    """Values that JSON can hold."""
    arrays: Mapping[str, Array] = field(default_factory=dict)


PRIORITY = Column.of("priority", np.float32, domain=Domain.between(0, np.inf, np.float32))
"""The column |TD error| that an actor adds to its rows with ``push.initial_priorities``."""
INTERVENED = Column.of("intervened", np.bool_)
"""Whether a person or a safety layer acted in the agent's place; only with ``env.intervention``."""


@dataclass(frozen=True)
class BufferedItems:
    """Rows or items that wait to be sent: a copy of the bytes of each column.

    Args:
        rows: the number of rows or items.
        columns: C-contiguous bytes by column name.
    """

    rows: int
    columns: Mapping[str, bytes]

    @property
    def n_bytes(self) -> int:
        """The memory that they take."""
        return sum(map(len, self.columns.values()))


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
