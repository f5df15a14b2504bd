"""One recorded episode as a file of numpy (``.npz``): its layout, its check, reading and writing.

An episode of T steps is one file. Its arrays are named by the columns of rows:

===========================  ===================  ====================================================================
array                        shape                content
===========================  ===================  ====================================================================
``obs``, or ``obs/…``        ``[T + 1, *shape]``  the observations, the one after the last action included
``action``, or ``action/…``  ``[T, *shape]``      the actions that were executed
``reward``                   ``[T]``              their rewards
``terminated``               ``[T]`` or ``[]``    optional, bool: only the last step may be True; ``[]``: its value
``truncated``                ``[T]`` or ``[]``    as ``terminated``
``intervened``               ``[T]``              optional, bool: whether a person or a safety layer acted
``info/KEY``                 ``[T, *shape]``      optional: the value in ``info`` after each step
===========================  ===================  ====================================================================

An episode without an end (neither ``terminated`` nor ``truncated`` is True) counts as cut off: its last step is
truncated. Arrays with other names are left out.
"""

from __future__ import annotations

import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from common.data import Array, Items
from common.errors import ConfigError, DatasetError
from common.hints import nearest
from common.home import expand_path

SUFFIX: Final = ".npz"
SPACES: Final = ("obs", "action")
"""For each of these spaces, an episode has one array (``obs``), or one array for each leaf (``obs/…``)."""
AT_ONCE: Final = 1 << 20
"""Bytes that are written at a time."""
FLAGS: Final = ("terminated", "truncated")
SMALL_BYTES: Final = 1 << 30
MOST_INFLATED: Final = 100
"""A file may inflate to ``SMALL_BYTES``, or to this multiple of its own size. Recorded steps inflate to a few times
their size; a file that was made to exhaust a reader inflates to a thousand times its size."""
_UNREADABLE: Final = (
    *(OSError, EOFError, MemoryError, RuntimeError, ValueError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""The errors that reading raises if a file is no .npz file, or is damaged."""


def check_inflated(path: Path, size: int) -> None:
    """Check that a compressed file does not inflate to far more than its own size, before it is read.

    Raises:
        DatasetError: it inflates to far more.
    """
    if size > max(SMALL_BYTES, MOST_INFLATED * (on_disk := path.stat().st_size)):
        raise DatasetError(
            f"{path}: expected contents of at most {MOST_INFLATED} times the file's own {on_disk} bytes, found {size} "
            "bytes; if you trust the file, store it uncompressed"
        )


class ArrayHeader(NamedTuple):
    """The header of one array in a file: its dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def headers_of(columns: Mapping[str, Array]) -> dict[str, ArrayHeader]:
    """Dtypes and shapes of arrays."""
    return {name: ArrayHeader(array.dtype, array.shape) for name, array in columns.items()}


def write_episode(path: str | Path, columns: Mapping[str, ArrayLike], *, must_be_finite: bool = True) -> None:
    """Write one episode. The file appears at ``path`` when it is whole and on the disk; no other file stays behind.

    Args:
        path: of the file, which ends in ``.npz``; its directory exists.
        columns: the arrays, see the module.
        must_be_finite: whether to refuse NaN and infinity; False for a run that clips them (``server.unusual_values``).

    Raises:
        ConfigError: ``path`` is no path of such a file, or ``columns`` no mapping.
        DatasetError: the arrays are no episode, or an observation, an action or a reward is NaN or infinite.
        OSError: the file cannot be written.
    """
    path = expand_path(path, "path")
    if path.suffix != SUFFIX or path.name.startswith("."):
        raise ConfigError(f"path: expected a name such as 0001{SUFFIX}, found '{path}': no reader finds another")
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"columns: expected arrays by their names, such as obs and action, found {columns!r:.80}")
    arrays = {name: _as_array(values, f"{path}: array '{name}'") for name, values in columns.items()}
    check_headers(headers_of(arrays), str(path))
    ends_of(arrays, str(path))
    for name, array in arrays.items() if must_be_finite else ():
        if array.dtype.kind == "f" and (name == "reward" or any(_is_in(name, space) for space in SPACES)):
            for bad in np.argwhere(~np.isfinite(array))[:1]:
                found = f"{array[tuple(bad)]} at {bad.tolist()}"
                raise DatasetError(f"{path}: array '{name}': expected finite values, found {found}")
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    _write(archive, name, array)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _as_array(values: ArrayLike, place: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DatasetError(f"{place}: expected rows of one shape, found {values!r:.80}") from error
    if array.dtype.hasobject:
        raise DatasetError(f"{place}: expected numbers, found {array.dtype} {list(array.shape)}")
    return array


def read_episode(path: Path) -> Items:
    """Read one episode.

    Returns:
        The arrays of the layout, see the module, in the dtypes of the file; always with ``terminated`` and
        ``truncated``, both ``[T]`` bool, one of which is True at the last step.

    Raises:
        DatasetError: the file cannot be read, or its arrays are no episode.
    """
    headers = read_headers(path)
    with _opened(path) as archive:
        found = {name: _read(archive, name) for name in headers}
    return found | ends_of(found, str(path))


def read_headers(path: Path) -> dict[str, ArrayHeader]:
    """Read dtypes and shapes of the arrays of one episode, but not their values; arrays of other names are left out.

    Raises:
        DatasetError: the file cannot be read, or its arrays are no episode.
    """
    with _opened(path) as archive:
        headers = {name: _read_header(archive, name) for name in _names(archive)}
    check_headers(headers, str(path))
    return {name: header for name, header in headers.items() if is_of_layout(name)}


def check_headers(headers: Mapping[str, ArrayHeader], place: str) -> int:
    """Check that arrays are one episode.

    Args:
        headers: of all arrays; arrays of other names are not checked.
        place: the file, in messages.

    Returns:
        T, the number of steps.

    Raises:
        DatasetError: naming the array, the expected and the found shape or dtype.
    """
    for name in ("reward", *SPACES):
        is_there = any(_is_in(found, name) for found in headers) if name in SPACES else name in headers
        if not is_there:
            raise DatasetError(f"{place}: expected an array '{name}', found {_listed(headers)}{nearest(name, headers)}")
    steps = _count_steps(headers["reward"], place)
    for name, header in headers.items():
        if is_of_layout(name):
            _check(name, header, steps, place)
    return steps


def ends_of(columns: Mapping[str, Array], place: str) -> Items:
    """``terminated`` and ``truncated`` of an episode of T steps, each ``[T]`` bool; see the module.

    Raises:
        DatasetError: a flag has another value than 0 and 1, or the episode ends before its last step.
    """
    steps = len(columns["reward"])
    flags = {name: _read_flag(name, columns.get(name), steps, place) for name in FLAGS}
    flags["truncated"][-1] |= not flags["terminated"][-1]
    return flags


def is_of_layout(name: str) -> bool:
    """Whether an array of this name belongs to an episode."""
    is_alone = name in ("reward", *FLAGS, "intervened")
    return is_alone or name.startswith("info/") or any(_is_in(name, space) for space in SPACES)


def _is_in(name: str, space: str) -> bool:
    """Whether an array holds a space, or a leaf of it."""
    return name == space or name.startswith(f"{space}/")


def _count_steps(reward: ArrayHeader, place: str) -> int:
    if len(reward.shape) != 1 or not reward.shape[0]:
        raise DatasetError(f"{place}: array 'reward': expected the shape [T] of at least one step, found {reward}")
    return reward.shape[0]


def _check(name: str, header: ArrayHeader, steps: int, place: str) -> None:
    """Check the kind of the dtype, and the number of rows."""
    expected = steps + 1 if _is_in(name, "obs") else steps
    is_flag = name in (*FLAGS, "intervened")
    rows = header.shape[:1]
    fits = header.shape == (steps,) if is_flag else rows == (expected,)
    if not (fits or (name in FLAGS and not header.shape)):
        text = f"[{expected}]" if is_flag else f"[{expected}, …]"
        hint = "; the observation after the last action is missing" if _is_in(name, "obs") and rows == (steps,) else ""
        raise DatasetError(
            f"{place}: array '{name}': expected the shape {text} in an episode of {steps} steps, found {header}{hint}"
        )
    if header.dtype.kind not in ("biu" if is_flag else "biuf"):
        expected_dtype = "bool" if is_flag else "a float, integer or bool dtype"
        raise DatasetError(f"{place}: array '{name}': expected {expected_dtype}, found {header}")


def _read_flag(name: str, values: Array | None, steps: int, place: str) -> Array:
    flags = np.zeros(steps, np.bool_)
    if values is None:
        return flags
    if values.ndim > 1 and values.size != len(values):  # An array of one element is as good as a number.
        raise DatasetError(f"{place}: array '{name}': expected a number for each step, found {list(values.shape[1:])}")
    values = values.reshape(-1) if values.ndim else values
    if not np.isin(values, (0, 1)).all():
        raise DatasetError(f"{place}: array '{name}': expected False and True, found {values.max()}")
    flags[-1:] = values if not values.ndim else values[-1]
    if values.ndim and (early := np.flatnonzero(values[:-1])).size:
        raise DatasetError(
            f"{place}: array '{name}': expected an end at the last step only, which is step {steps - 1}, found True at "
            f"step {early[0]}: more than one episode"
        )
    return flags


def _listed(headers: Mapping[str, ArrayHeader]) -> str:
    return ", ".join(f"'{name}'" for name in headers) or "no arrays"


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The open file; errors name it."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_inflated(path, sum(info.file_size for info in archive.infolist()))
            yield archive
    except _UNREADABLE as error:
        raise DatasetError(f"{path}: expected an episode as an .npz file, which cannot be read: {error}") from error


def _names(archive: zipfile.ZipFile) -> list[str]:
    """The arrays that a file holds."""
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _write(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Write an array as ``numpy.savez`` does, but without holding up other threads for the copy of a large array."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        values = np.asarray(array, order="C")
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        flat = values.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), AT_ONCE):
            file.write(flat[start : start + AT_ONCE].data)


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array


def _read_header(archive: zipfile.ZipFile, name: str) -> ArrayHeader:
    """Dtype and shape of an array."""
    with archive.open(f"{name}.npy") as file:
        if (version := np.lib.format.read_magic(file)) != (1, 0):  # A later version may have a header of 4 GiB.
            raise ValueError(f"array '{name}': expected numpy's format 1.0, found {'.'.join(map(str, version))}")
        try:
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except (SyntaxError, TypeError, ValueError, tokenize.TokenError) as error:  # It is read as Python.
            raise ValueError(f"array '{name}': its header is damaged: {error}") from error
        found, expected = archive.getinfo(f"{name}.npy").file_size - file.tell(), math.prod(shape) * dtype.itemsize
    if found != expected and not dtype.hasobject:
        raise ValueError(f"array '{name}': expected {expected} bytes of {dtype} {list(shape)}, found {found}")
    return ArrayHeader(dtype, shape)
