"""Observations and actions of a policy as bytes, and their description for people who write a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import Any, Final

import numpy as np

from common.action_masks import find_masks
from common.bad_values import KEEP_ALL, LARGEST_VALUE, RefuseAll, Rules
from common.data import Array, Column, Leaves, Schema
from common.errors import PluginError, RefusedError, SchemaMismatchError, naming_failed_part
from common.interfaces import EnvSpec
from common.spaces import AnySpace, columns_of, convert, from_columns, to_columns
from common.wire.codec import decode, encode
from common.wire.pb import acting_pb2 as pb
from common.wire.rpc import BadMessageError

VERSION: Final = 1
"""The version of ``acting.proto``."""
_FOR_ROWS: Final = RefuseAll(LARGEST_VALUE)
"""The largest float of a client: a run that clips nothing refuses a whole batch for a larger one."""


class Description:
    """The spaces of one lane, as they travel; ``acting.proto`` has the rules.

    Args:
        spec: the spaces.
        takes_executed: whether clients may say that others than the policy acted.

    Raises:
        ConfigError: a leaf of a space cannot travel.
    """

    def __init__(self, spec: EnvSpec, *, takes_executed: bool = True) -> None:
        self.spec, self.takes_executed = spec, takes_executed
        self.masks = find_masks(spec)
        """The action masks in the observations; None if there are none."""
        self._observation = Schema(tuple(map(_without_bounds, columns_of("observation", spec.observation_space))))
        self._action = Schema(columns_of("action", spec.action_space))
        self.observation_columns = _by_path("observation", self._observation)
        self.action_columns = _by_path("action", self._action)
        """By path of the leaf, in the order of payloads; a space that is a leaf has the empty path."""

    def read_observation(self, payload: bytes, k: int) -> Leaves:
        """The observations of k lanes, ``[k, *shape]``, as views of a copy of the payload.

        They can be written, since torch warns of arrays that cannot.

        Raises:
            BadMessageError: the payload has another size, or a value that observations cannot have.
        """
        return _read("observation", self._observation, memoryview(bytearray(payload)), k)

    def read_action(self, payload: bytes, k: int, *, checked: bool = True) -> Leaves:
        """The actions of k lanes, ``[k, *shape]``, as read-only views of the payload.

        Values that actions cannot have are refused if ``checked``; the service's own are told as they are.

        Raises:
            BadMessageError: the payload has another size, or a value that actions cannot have.
        """
        return _read("action", self._action, payload, k, _FOR_ROWS if checked else KEEP_ALL)

    def write_actions(self, actions: Leaves, counts: Sequence[int]) -> list[bytes]:
        """The actions of n lanes, ``[n, *shape]``, as a payload for each of the sessions that have so many lanes.

        Raises:
            PluginError: there is not one action for each lane, or the space's dtype cannot hold one; or an action is
                NaN or infinite, which no client should execute.
        """
        n = sum(counts)
        with naming_failed_part("the policy's actions do not fit the action space"):
            given = to_columns("action", actions)
            columns = {column.name: convert(given[column.name], column.numpy_dtype) for column in self._action.columns}
        for column in self._action.columns:
            array, shape = columns[column.name], (n, *column.shape)
            if array.shape != shape:
                raise PluginError(
                    f"the policy: expected actions for {n} lanes, {column.numpy_dtype} {list(shape)}, found "
                    f"{list(array.shape)} in {column.name}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise PluginError(
                    f"the policy: expected finite actions, found {array[~np.isfinite(array)][0]} in {column.name}"
                )
        ends = list(accumulate(counts))
        parts = [
            [packed[(end - k) * size : end * size] for k, end in zip(counts, ends, strict=True)]
            for packed, size in ((array.tobytes(), array.nbytes // n) for array in columns.values())
        ]
        return parts[0] if len(parts) == 1 else list(map(b"".join, zip(*parts, strict=True)))

    def write_observation(self, observations: Leaves, k: int) -> bytes:
        """The payload with the observations of k lanes."""
        return _write("observation", self._observation, observations, k)

    def write_executed(self, actions: Leaves, k: int) -> bytes:
        """The payload with the actions of k lanes, which somebody else than the policy has chosen."""
        return _write("action", self._action, actions, k)

    def step_bytes(self, k: int) -> int:
        """The most bytes of a step of k lanes: besides payloads, a lane has a number, a reward and four flags."""
        return k * (self._observation.row_bytes + self._action.row_bytes + 16) + 64

    def leaves(self) -> tuple[list[pb.Leaf], list[pb.Leaf]]:
        """The leaves of one observation and of one action, for ``DescribeResponse``."""
        spaces = self.spec.observation_space, self.spec.action_space
        return list(_describe("observation", spaces[0])), list(_describe("action", spaces[1]))

    def require_same(self, described: pb.DescribeResponse, mine: str) -> None:
        """Compare these spaces with those that an acting service describes.

        Bounds of floats in observations are not compared, as environments declare them carelessly.

        Args:
            described: by the service.
            mine: the name of what has these spaces.

        Raises:
            SchemaMismatchError: naming the first leaf that differs.
        """
        given = described.observation, described.action
        for name, theirs, own in zip(("observation", "action"), given, self.leaves(), strict=True):
            for their_leaf, own_leaf in zip_longest(theirs, own):
                there, here = (_tell(leaf, name) for leaf in (their_leaf, own_leaf))
                if there != here:
                    raise SchemaMismatchError(f"{name}: the acting service expects {there}, {mine} has {here}")


def _without_bounds(column: Column) -> Column:
    """Floats may leave their bounds, as in the rows of actors: environments declare them carelessly."""
    return replace(column, domain=None) if column.numpy_dtype.kind == "f" else column


def _by_path(name: str, schema: Schema) -> dict[str, Column]:
    return {column.name.removeprefix(name).removeprefix("/"): column for column in schema.columns}


def _read(name: str, schema: Schema, payload: bytes | memoryview, k: int, rules: Rules = _FOR_ROWS) -> Leaves:
    try:
        columns = decode(schema, k, payload, rules)
    except RefusedError as error:
        raise BadMessageError(f"{name}: {error}") from error
    leaves: Leaves = from_columns(name, columns)
    return leaves


def _write(name: str, schema: Schema, leaves: Leaves, k: int) -> bytes:
    return encode(schema, _columns_of(name, schema, leaves, k), k)


def _columns_of(name: str, schema: Schema, leaves: Leaves, k: int) -> dict[str, Array]:
    """The leaves of k lanes as the columns of a payload, in its order."""
    found: dict[str, Any] = to_columns(name, leaves)
    return {
        column.name: np.asarray(found[column.name], column.numpy_dtype).reshape(k, *column.shape)
        for column in schema.columns
    }


def _tell(leaf: pb.Leaf | None, name: str) -> str:
    if leaf is None:
        return "no further leaf"
    path = f"'{leaf.path}' " if leaf.path else ""
    low, high = (list(bound) for bound in (leaf.low, leaf.high))
    has_bounds = low and not (name == "observation" and leaf.dtype[1:2] == "f")
    bounds = f" from {_first_of(low)} to {_first_of(high)}" if has_bounds else ""
    return f"{path}{leaf.dtype} {list(leaf.shape)}{bounds}"


def tell_leaves(leaves: Iterable[pb.Leaf]) -> str:
    """The leaves of an observation or action as ``Describe`` tells them, for people."""
    return ", ".join(f"{leaf.path} {leaf.dtype} {list(leaf.shape)}".strip() for leaf in leaves)


def _first_of(bounds: list[float]) -> str:
    return f"{bounds[0]:.17g}" if len(bounds) == 1 else str(bounds)


def _describe(name: str, space: AnySpace) -> Iterator[pb.Leaf]:
    for column in columns_of(name, space):
        bounds = column.domain
        yield pb.Leaf(
            path=column.name.removeprefix(name).removeprefix("/"),
            dtype=column.dtype,
            shape=column.shape,
            low=bounds.low.tolist() if bounds else [],
            high=bounds.high.tolist() if bounds else [],
        )
