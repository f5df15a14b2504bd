"""Checks the files of a Minari dataset before Minari reads them, since they may come from strangers.

Minari makes the environment that a dataset names if the dataset lacks a space, and follows HDF5's links into other
files. It reads as many values as a file declares, and a few bytes can declare any number of values.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import gymnasium
import h5py  # type: ignore[import-untyped]
import numpy as np
from gymnasium.spaces import Dict, Tuple
from minari.dataset.minari_storage import is_image_space  # type: ignore[import-untyped]
from minari.serialization import deserialize_space  # type: ignore[import-untyped]
from PIL import Image

from common.depth import ANY_NUMBER, parse_json
from common.episode_files import check_inflated
from common.errors import DatasetError

Space = gymnasium.Space[Any]
Named = tuple[tuple[str, ...], Any]
"""An array of a file, with the names on the way to it."""
AT_ONCE: Final = 16
"""Texts or pictures that are read at a time to find out how long they are."""


def count_steps(directory: Path) -> int:
    """Check the files of a dataset, and count the steps that they hold.

    Raises:
        DatasetError: the dataset lacks a space, its file has links, or it holds far more values than it has bytes.
        AttributeError, LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError: a file is damaged.
    """
    about, path = directory / "metadata.json", directory / "main_data.hdf5"
    metadata = parse_json(about.read_text(), **ANY_NUMBER)
    if metadata["data_format"] != "hdf5":
        raise DatasetError(f"{about}: data_format: expected hdf5, found {metadata['data_format']!r}")
    spaces = {f"{kind}s": _read_space(metadata, f"{kind}_space", about) for kind in ("observation", "action")}
    steps = stored = 0
    with h5py.File(path, "r") as file:
        if not 0 <= metadata["total_episodes"] <= len(file):
            raise DatasetError(
                f"{about}: total_episodes: expected at most the {len(file)} that {path} has, found "
                f"{metadata['total_episodes']}"
            )
        for _, arrays in groupby(_find_arrays(file, path), key=lambda found: found[0][0]):
            decoded = 0  # Pictures of one episode are decoded at a time.
            for (_, *names), array in arrays:
                for size in _list_sizes(array):
                    check_inflated(path, (stored := stored + size) + decoded)
                if is_image_space(space := _find_space(spaces, names)) and metadata.get("jpeg_encoding", True):
                    decoded += _count_decoded(array, space.shape, path)
                    check_inflated(path, stored + decoded)
                steps += len(array) if names == ["rewards"] else 0
    return steps


def _read_space(metadata: Mapping[str, Any], name: str, about: Path) -> Space:
    if name not in metadata:  # The dataset names an environment instead, and to make it would run code.
        raise DatasetError(f"{about}: expected an entry '{name}', found none")
    described = parse_json(metadata[name], **ANY_NUMBER)
    _check_bounds(described, about)
    space: Space = deserialize_space(described)
    return space


def _check_bounds(described: Any, about: Path) -> None:
    """Check that a space is as large as its description: the bounds of a Box may be one number for any shape."""
    if "shape" in described and np.shape(described["low"]) != (shape := tuple(described["shape"])):
        raise DatasetError(f"{about}: expected bounds of the shape {list(shape)}, found {np.shape(described['low'])}")
    parts = described.get("subspaces", ())
    for part in parts.values() if isinstance(parts, dict) else parts:
        _check_bounds(part, about)


def _find_arrays(file: Any, path: Path) -> Iterator[Named]:
    """All arrays of a file, those of one episode one after another."""
    waiting: list[Named] = [((), file)]
    seen: set[int] = set()
    while waiting:
        names, node = waiting.pop()
        place = "/".join(names)
        if (address := h5py.h5o.get_info(node.id).addr) in seen:
            raise DatasetError(f"{path}: '{place}': expected one name of each array, found another name of it")
        seen.add(address)
        if isinstance(node, h5py.Dataset):
            if node.is_virtual or node.external:
                raise DatasetError(f"{path}: '{place}': expected values in the file itself, found those of other files")
            if node.dtype.kind not in "biufSO":
                raise DatasetError(f"{path}: '{place}': expected numbers, texts or pictures, found {node.dtype}")
            yield names, node
            continue
        for key in node:
            if not isinstance(node.get(key, getlink=True), h5py.HardLink):
                raise DatasetError(f"{path}: '{place}/{key}': expected values in the file itself, found a link")
            waiting.append(((*names, key), node[key]))


def _list_sizes(array: Any) -> Iterator[int]:
    """The bytes of an array, part after part. Texts and pictures have any length, so they are read to find it out."""
    if array.dtype.kind != "O":
        yield array.size * array.dtype.itemsize
        return
    for start in range(0, len(array), AT_ONCE):
        yield sum(map(len, array[start : start + AT_ONCE]))


def _find_space(spaces: Mapping[str, Space], names: list[str]) -> Any:
    """The space of an array of observations or actions; None for other arrays."""
    space: Any = spaces.get(names[0])
    for name in names[1:]:
        match space:
            case Dict():
                space = space.spaces[name]
            case Tuple():
                space = space.spaces[int(name.removeprefix("_index_"))]
    return space


def _count_decoded(array: Any, shape: tuple[int, ...], path: Path) -> int:
    """The bytes of pictures when they are decoded. Minari makes room for all of them by the size of the first one."""
    with Image.open(io.BytesIO(bytes(array[0]))) as picture:
        found, expected = (picture.height, picture.width), shape[:2]
    if found != expected:
        raise DatasetError(f"{path}: '{array.name}': expected pictures {list(expected)}, found {list(found)}")
    return len(array) * math.prod(shape)
