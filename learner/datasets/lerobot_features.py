"""The contents of ``meta/info.json`` of a LeRobot dataset, and the features that become the columns of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.data import Column, Schema
from common.depth import parse_json
from common.episode_files import ArrayHeader
from common.errors import DatasetError, SchemaMismatchError
from learner.datasets.episode_rows import NOT_NEEDED, required_columns
from learner.datasets.lerobot_pictures import CHANNELS, arranged_shape, fill_template

VERSIONS: Final = ("v2.", "v3.")
REWARD: Final = "next.reward"
STARTS: Final = {"obs": "observation", "action": "action", "reward": REWARD}
"""The beginning of the names of the features for each group of columns; extra columns come from other features."""
NAMES_OF_CHANNELS: Final = ("channels", "channel", "c", "rgb")
KINDS_OF_PICTURES: Final = ("video", "image")


def read_info(path: Path) -> dict[str, Any]:
    """The contents of ``meta/info.json``.

    Raises:
        DatasetError: it cannot be read, or the dataset is of another version.
    """
    try:
        info: dict[str, Any] = parse_json(path.read_text())
        version = info["codebase_version"]
        _convert_values(info)
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{path}: expected a LeRobot dataset's version, fps and features, found {error!r}"
        ) from error
    if not str(version).startswith(VERSIONS):
        raise DatasetError(f"{path}: expected a LeRobot dataset of version 2 or 3, found {version}")
    return info


def _convert_values(info: Mapping[str, Any]) -> None:
    """Convert the values that are used later, so that a value of a wrong type raises here."""
    float(info["fps"])
    pictures = [feature for feature in info["features"].values() if is_picture(feature)]
    for picture in pictures:
        _, _, _ = map(int, picture["shape"])
    if any(picture["dtype"] == "video" for picture in pictures):
        if int(info["chunks_size"]) < 1:
            raise ValueError(f"chunks_size: expected 1 or more, found {info['chunks_size']}")
        numbers = dict.fromkeys(("episode_chunk", "episode_index", "chunk_index", "file_index"), 0)
        fill_template(str(info["video_path"]), video_key="", **numbers)


def match_features(schema: Schema, features: Mapping[str, Any], place: str) -> dict[str, str]:
    """The feature from which each column is taken, by column.

    Args:
        schema: of the rows.
        features: of the dataset.
        place: the dataset, in messages.

    Raises:
        SchemaMismatchError: a column that the run needs has no feature, or several.
    """
    needed = {column.name for column in required_columns(schema)}
    taken = {}
    for column in schema.columns:
        if column.name in NOT_NEEDED:
            continue
        found, known = _find(column.name, features)
        if len(found) == 1:
            taken[column.name] = found[0]
        elif found or column.name in needed:
            raise SchemaMismatchError(_describe(column, found, known, place))
    return taken


def _find(name: str, features: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The features that fit a column, and those of its group."""
    group, _, path = name.partition("/")
    start = STARTS.get(group)
    known = [f for f in features if (f.startswith(start) if start else not f.startswith((*STARTS.values(),)))]
    if start is None:
        return [f for f in known if _ends_in(f, path or group)], known
    return [f for f in known if not path or _ends_in(f, path)], known


def _ends_in(feature: str, path: str) -> bool:
    return f"/{feature.replace('.', '/')}".endswith(f"/{path}")


def _describe(column: Column, found: list[str], known: list[str], place: str) -> str:
    group, _, path = column.name.partition("/")
    if group == "reward":
        return f"{place}: expected a feature '{REWARD}', found none; docs/demonstrations.md says how to add rewards"
    if found:
        expected = (
            f"one feature that ends in '.{path.replace('/', '.')}'" if path else f"one feature '{STARTS[group]}…'"
        )
        hint = "" if path else "; an observation space of type Dict takes them by their names"
        return f"{place}: column '{column.name}': expected {expected}, found {', '.join(found)}{hint}"
    names = ", ".join(known) or "none"
    return f"{place}: column '{column.name}': expected a feature that ends in '.{path or group}', found {names}"


def is_picture(feature: Mapping[str, Any]) -> bool:
    """Whether a feature holds frames of videos or single pictures."""
    return feature["dtype"] in KINDS_OF_PICTURES


def picture_header(column: Column, feature: Mapping[str, Any]) -> ArrayHeader:
    """Dtype and shape, ``[1, *shape]``, of a feature of pictures, its channels arranged as the column has them.

    Datasets name the axis of channels in several ways, or name no axes. So the sizes say where the channels are; the
    names decide only if both the first and the last axis could be of channels, or neither.
    """
    first, second, last = map(int, feature["shape"])
    if (first in CHANNELS) != (last in CHANNELS):
        is_channels_first = first in CHANNELS
    else:
        is_channels_first = str(next(iter(feature.get("names") or ()), "")).lower() in NAMES_OF_CHANNELS
    height, width = (second, last) if is_channels_first else (first, second)
    return ArrayHeader(np.dtype(np.uint8), (1, *arranged_shape(height, width, column.shape)))
