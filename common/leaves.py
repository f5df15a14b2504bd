"""The leaves of n lanes: how they are made, read and set, one array for each leaf of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from common import spaces
from common.data import Array, Leaves
from common.errors import PluginError


def empty_leaves(space: gymnasium.Space[Any], n: int) -> Leaves:
    """Leaves for n elements of a space, all 0, or all the first value of a Discrete or MultiDiscrete space."""
    leaves = {
        path: np.full((n, *(leaf.shape or ())), getattr(leaf, "start", 0), leaf.dtype)
        for path, leaf in spaces.leaves_of(space).items()
    }
    return leaves[""] if leaves.keys() == {""} else leaves


def by_path(leaves: Leaves) -> dict[str, Array]:
    """The array of each leaf by path; the path is empty if the space itself is a leaf."""
    return leaves if isinstance(leaves, dict) else {"": leaves}


def stack_lanes(elements: Sequence[Leaves]) -> Leaves:
    """The leaves of single elements, one for each of n lanes, as the leaves ``[n, *shape]`` of all lanes."""
    found = {path: np.stack([by_path(element)[path] for element in elements]) for path in by_path(elements[0])}
    return found if isinstance(elements[0], dict) else found[""]


def pick_leaves(leaves: Leaves, index: Any) -> Leaves:
    """The leaves at any index of numpy along their first axis, of lanes or of times; a copy for several of them."""
    if isinstance(leaves, dict):
        return {path: leaf[index] for path, leaf in leaves.items()}
    picked: Array = leaves[index]
    return picked


def put_leaves(leaves: Leaves, lanes: Any, values: Leaves) -> None:
    """Set the leaves of one lane, or of several, to values of the same shape.

    Raises:
        ValueError: a value has another shape.
    """
    if not isinstance(leaves, dict):
        _set(leaves, lanes, values)
        return
    for path, leaf in leaves.items():
        _set(leaf, lanes, values[path])


def _set(leaf: Array, lanes: Any, value: Any) -> None:
    if leaf[lanes].shape != np.shape(value):
        raise ValueError(f"expected the shape {list(leaf[lanes].shape)}, found {list(np.shape(value))}")
    leaf[lanes] = value


def describe_misfit(space: gymnasium.Space[Any], value: Any, lanes: tuple[int, ...] = ()) -> str | None:
    """The first leaf of a value that does not fit its leaf of the space, in words; None if all leaves fit.

    Args:
        space: of one element.
        value: an element ``[*shape]``, or with ``lanes`` a batch of elements ``[*lanes, *shape]``.
        lanes: the axes before those of an element.
    """
    for path, leaf in spaces.leaves_of(space).items():
        where = f"leaf '{path}': " if path else ""
        shape, domain = (*lanes, *(leaf.shape or ())), spaces.domain_of(leaf)
        bounds = f" of {domain.text()}" if domain is not None and len(domain.low) == 1 else ""
        expected = f"{where}expected {leaf.dtype} {list(shape)}{bounds}, found"
        try:
            found = _at(value, path)
        except spaces.UNREADABLE:
            return f"{expected} no such leaf in {describe(value)}"
        try:
            values = spaces.convert(found, leaf.dtype)
            indices = None if isinstance(leaf, gymnasium.spaces.Box) else domain
            fits = values.shape == shape and (indices is None or indices.holds(values.reshape(-1)))
        except spaces.UNREADABLE:
            fits = False
        if not fits:
            return f"{expected} {describe(found)}"
    return None


def _at(value: Any, path: str) -> Any:
    for key in path.split("/") if path else ():
        value = value[key] if isinstance(value, Mapping) else value[int(key)]
    return value


def describe(value: Any) -> str:
    """The dtype, shape and range of a value, for messages; of other objects the type."""
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(map(str, value))}"
    try:
        found = np.asarray(value)
    except ValueError:
        return f"a {type(value).__name__} of parts with different shapes"
    except spaces.UNREADABLE as error:
        return f"a {type(value).__name__} that numpy cannot read: {error}"
    if found.dtype.kind not in "biuf":
        return f"{value!r:.80}"
    if found.size <= 1:
        return f"{found.dtype} {list(found.shape)} {', '.join(map(str, found.reshape(-1).tolist()))}".rstrip()
    return f"{found.dtype} {list(found.shape)} from {found.min():g} to {found.max():g}"


def capacity_for(lanes: Array, n: int) -> int:
    """The number of lanes to hold so that these, ``[k]`` int64, are among them.

    It is n if they are among n lanes, and otherwise a power of two, so that it grows seldom.
    """
    greatest = int(lanes.max())
    return n if greatest < n else 1 << greatest.bit_length()


def copy_leaves(leaves: Leaves) -> Leaves:
    return {path: leaf.copy() for path, leaf in leaves.items()} if isinstance(leaves, dict) else leaves.copy()


def on_host(value: Any) -> Any:
    """The same values as arrays in the memory of the host; tensors may lie on a device."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {key: on_host(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(on_host(inner) for inner in value)
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def as_shape(value: Any, shape: tuple[int, ...], name: str) -> Array:
    """A value as an array of this shape; a single 0 stands for zeros.

    Raises:
        PluginError: the value has another shape.
    """
    try:
        found = np.asarray(value)
    except spaces.UNREADABLE as error:
        raise PluginError(f"env: {name}: expected the shape {list(shape)}, found {describe(value)}") from error
    if found.shape != shape and not (found.ndim == 0 and not found):
        raise PluginError(f"env: {name}: expected the shape {list(shape)}, found {list(found.shape)}")
    return np.broadcast_to(found, shape) if found.shape != shape else found


def n_rows(obs: Leaves) -> int:
    """The number of observations."""
    return len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
