"""The leaves of n lanes: how they are made, read and set, one array for each leaf of a space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from common import spaces
from common.data import Array, Leaves
from common.errors import PluginError


def empty_leaves(space: gymnasium.Space[Any], n: int) -> Leaves:
    """Leaves for n elements of a space, all 0."""
    leaves = {path: np.zeros((n, *(leaf.shape or ())), leaf.dtype) for path, leaf in spaces.leaves_of(space).items()}
    return leaves[""] if leaves.keys() == {""} else leaves


def pick_lanes(leaves: Leaves, lanes: Any) -> Leaves:
    """A copy of the leaves of these lanes."""
    if isinstance(leaves, dict):
        return {path: leaf[lanes] for path, leaf in leaves.items()}
    picked: Array = leaves[lanes]
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
    found = np.asarray(value)
    if found.shape != shape and not (found.ndim == 0 and not found):
        raise PluginError(f"env: {name}: expected the shape {list(shape)}, found {list(found.shape)}")
    return np.broadcast_to(found, shape) if found.shape != shape else found
