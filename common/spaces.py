"""Structured spaces and their leaves: a Dict or Tuple space as flat columns that are named by path, and back.

The path of a leaf is made of the keys of Dict spaces and the numbers of Tuple spaces: ``arm/joints``, ``0``. A space
that is itself a leaf (Box, Discrete, MultiDiscrete, MultiBinary) has the empty path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space, spaces

from common.data import Array, Column, Leaves
from common.domain import Domain
from common.errors import ConfigError

AnySpace = Space[Any]
UNREADABLE: Final = (IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What numpy, Python and torch (RuntimeError) raise for a value that cannot be read, or does not fit a space."""
LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def leaves_of(space: AnySpace, path: str = "") -> dict[str, AnySpace]:
    """The leaves of a space by path; ``{"": space}`` for a space that is a leaf.

    Raises:
        ConfigError: there are no leaves, or a part has no fixed dtype and shape, or no numbers, or a key cannot be part
            of a path.
    """
    if isinstance(space, LEAF_SPACES):
        if 0 in (space.shape or ()):
            raise ConfigError(f"space{_at(path)}: expected at least one number, found {space}{_advise(space, path)}")
        return {path: space}
    found: dict[str, AnySpace] = {}
    for key, part in _parts(space, path):
        found |= leaves_of(part, f"{path}/{key}" if path else key)
    if not found and not path:
        raise ConfigError(f"space: expected at least one leaf, found {space}")
    return found


def _parts(space: AnySpace, path: str) -> Iterator[tuple[str, AnySpace]]:
    if isinstance(space, spaces.Dict):
        pairs = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        pairs = [(str(i), part) for i, part in enumerate(space.spaces)]
    else:
        expected = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
        raise ConfigError(f"space{_at(path)}: expected {expected}, found {space}{_advise(space, path)}")
    for key, part in pairs:
        if not isinstance(key, str) or not key or "/" in key or not key.isprintable():
            raise ConfigError(f"space: expected keys of text without '/', found {key!r}")
        yield key, part


def _at(path: str) -> str:
    return f" at '{path}'" if path else ""


def _advise(space: object, path: str) -> str:
    """What to do about a space that cannot be recorded, for messages."""
    if not isinstance(space, Space):
        package = type(space).__module__.partition(".")[0]
        return (
            f", a {type(space).__name__} of the package {package}: crossborder needs the spaces of gymnasium; shimmy's "
            "GymV21CompatibilityV0 and GymV26CompatibilityV0 wrap environments of gym"
        )
    if path and "/" not in path:
        return (
            "; to leave this leaf out, keep the other keys with env.wrappers: [{target: "
            "gymnasium.wrappers:FilterObservation, params: {filter_keys: [KEY, …]}}]"
        )
    return ""


def narrow(space: AnySpace) -> AnySpace:
    """The same space with floats of 64 bits and more as float32, and in the byte order of this host, as torch wants.

    Returns:
        ``space`` itself if nothing is to be changed.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: narrow(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([narrow(part) for part in space.spaces])
    if isinstance(space, spaces.Box):
        is_long = space.dtype.kind == "f" and space.dtype.itemsize >= 8
        dtype: Any = np.dtype(np.float32) if is_long else space.dtype.newbyteorder("=")
        if dtype != space.dtype:
            return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype)
    return space


def stack(space: AnySpace, k: int) -> AnySpace:
    """The space of the last ``k`` elements of ``space``, oldest first: each leaf ``[k, *shape]``.

    Raises:
        ConfigError: a leaf is no Box.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: stack(part, k) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stack(part, k) for part in space.spaces])
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"env.frame_stack: expected observations of Box leaves, found {space}")
    low, high = (np.repeat(bound[None], k, axis=0) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)


def flatten(space: AnySpace, value: Any) -> Leaves:
    """An element of ``space``, or a batch of elements, as leaves: each an array of its leaf's dtype.

    Raises:
        ConfigError, IndexError, KeyError: the value has other parts than the space.
        OverflowError, RuntimeError, TypeError, ValueError: a leaf's dtype cannot hold its values, see ``convert``.
    """
    if isinstance(space, LEAF_SPACES):
        return convert(value, space.dtype)
    return dict(_flatten(space, value, ""))


def convert(value: Any, dtype: Any) -> Array:
    """Values as an array of this dtype, unchanged: numpy itself makes 0 of 0.9 and 44 of 300 for uint8.

    Only floats are rounded to shorter floats. A float beyond the shorter dtype becomes infinite, as IEEE 754 rounds it.

    Raises:
        OverflowError, RuntimeError, TypeError, ValueError: the dtype cannot hold the values.
    """
    found = np.asarray(value)
    if found.dtype == dtype:
        return found
    with np.errstate(invalid="ignore", over="ignore"):  # NaN becomes a whole number, which differs from NaN.
        converted: Array = found.astype(dtype)
    if holds_all(dtype, found.dtype):
        return converted
    is_same = np.dtype(dtype).kind == "f" or np.array_equal(converted, found)  # Objects become floats if they can.
    if found.dtype.kind not in "biufO" or not is_same:
        raise ValueError(f"{dtype} cannot hold these values of {found.dtype}")
    return converted


def holds_all(dtype: Any, other: Any) -> bool:
    """Whether a dtype holds every value of another; floats hold numbers that they round."""
    return np.can_cast(other, dtype, "same_kind" if np.dtype(dtype).kind == "f" else "safe")


def _flatten(space: AnySpace, value: Any, path: str) -> Iterator[tuple[str, Array]]:
    if isinstance(space, LEAF_SPACES):
        yield path, convert(value, space.dtype)
        return
    for key, part in _parts(space, path):
        inner = value[key] if isinstance(value, Mapping) else value[int(key)]
        yield from _flatten(part, inner, f"{path}/{key}" if path else key)


def unflatten(space: AnySpace, leaves: Leaves) -> Any:
    """The element of ``space`` that has these leaves: the reverse of ``flatten``.

    A leaf without dimensions becomes a numpy scalar, since some environments use an action as the index of a table.
    """
    if not isinstance(leaves, dict):
        return _as_element(leaves)
    return _unflatten(space, leaves, "")


def _as_element(leaf: Any) -> Any:
    return leaf[()] if isinstance(leaf, np.ndarray) else leaf


def _unflatten(space: AnySpace, leaves: Mapping[str, Array], path: str) -> Any:
    if isinstance(space, LEAF_SPACES):
        return _as_element(leaves[path])
    parts = {key: _unflatten(part, leaves, f"{path}/{key}" if path else key) for key, part in _parts(space, path)}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def columns_of(prefix: str, space: AnySpace) -> tuple[Column, ...]:
    """The columns that hold elements of a space: ``prefix`` alone for a leaf, ``prefix/path`` for each leaf otherwise.

    Raises:
        ConfigError: a leaf cannot be stored.
    """
    return tuple(
        Column.of(name_of(prefix, path), leaf.dtype, leaf.shape or (), domain_of(leaf))  # type: ignore[arg-type]
        for path, leaf in leaves_of(space).items()
    )


def name_of(prefix: str, path: str) -> str:
    """The column of the leaf at a path."""
    return f"{prefix}/{path}" if path else prefix


def domain_of(space: AnySpace) -> Domain | None:
    """The values that a leaf's elements may have; None if they may have every value of the dtype."""
    match space:
        case spaces.Box():
            return Domain.between(space.low, space.high, space.dtype)
        case spaces.Discrete():
            return Domain.between(space.start, space.start + space.n - 1, space.dtype)
        case spaces.MultiDiscrete():
            return Domain.between(space.start, space.start + space.nvec - 1, space.dtype)
        case spaces.MultiBinary():
            return Domain.between(0, 1, space.dtype)
    return None


def to_columns(prefix: str, leaves: Leaves) -> dict[str, Array]:
    """Leaves as columns: ``{prefix: array}``, or ``{prefix/path: array}`` with an entry for each leaf."""
    if not isinstance(leaves, dict):
        return {prefix: leaves}
    return {f"{prefix}/{path}": array for path, array in leaves.items()}


def from_columns(prefix: str, columns: Mapping[str, Any]) -> Any:
    """The leaves in the columns ``prefix`` or ``prefix/…``: the reverse of ``to_columns``, for arrays and tensors.

    Raises:
        ConfigError: no column has such a name, as in a batch of sequences for an agent that draws transitions.
    """
    if prefix in columns:
        return columns[prefix]
    begin = f"{prefix}/"
    found = {name.removeprefix(begin): value for name, value in columns.items() if name.startswith(begin)}
    if not found:
        raise ConfigError(
            f"the agent needs a column {prefix}, but a batch has {', '.join(columns)}: replay.view chooses columns"
        )
    return found
