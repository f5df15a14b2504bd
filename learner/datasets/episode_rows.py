"""Recorded episodes as rows of a run: which arrays fit which columns, and how values are converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from actor.sampling.sampler import agreed_schema, map_rows
from common.data import (
    FINAL,
    FIRST,
    INTERVENED,
    LANE,
    PRIORITY,
    ROW_COLUMNS,
    VERSION,
    Array,
    Column,
    Items,
    Leaves,
    Schema,
)
from common.episode_files import ArrayHeader, ends_of
from common.errors import DatasetError, SchemaMismatchError
from common.hints import nearest
from common.interfaces import Step
from common.leaves import pick_leaves
from common.parts import Parts
from common.spaces import from_columns

UNKNOWN_AS_ZERO: Final = ("intervened", "state")
"""Extra columns (or the beginnings of their paths) that are zero where a dataset does not have them: nobody intervened,
and a recurrent agent begins with an empty memory."""
NOT_NEEDED: Final = ("terminated", "truncated", *(column.name for column in ROW_COLUMNS))
"""Columns that are made if an episode does not have them."""


def required_columns(schema: Schema) -> Iterator[Column]:
    """The columns of rows for which an episode needs an array."""
    for column in schema.columns:
        if column.name not in NOT_NEEDED and column.name.partition("/")[0] not in UNKNOWN_AS_ZERO:
            yield column


def check_arrays(schema: Schema, headers: Mapping[str, ArrayHeader], place: str) -> None:
    """Check that the arrays of an episode can be stored in the columns of rows.

    Whole numbers may become floats, and floats and whole numbers get the width of their column. An array ``[1]`` for
    each step is as good as a number, and a number as good as ``[1]``. Everything else must be equal.

    Args:
        schema: of the rows.
        headers: of the episode's arrays, ``[T or T + 1, *shape]``. Those of other names are not looked at.
        place: the file or episode, in messages.

    Raises:
        SchemaMismatchError: naming the array, the expected and the found dtype and shape.
    """
    for column in required_columns(schema):
        if column.name not in headers:
            raise SchemaMismatchError(_describe_missing(column, headers, place))
    for column in schema.columns:
        header = headers.get(column.name)
        if (
            header is not None
            and column.name not in NOT_NEEDED
            and (wrong := _find_mismatch(column, header)) is not None
        ):
            expected, found = _describe(column.dtype, column.shape), _describe(header.dtype, header.shape[1:])
            raise SchemaMismatchError(
                f"{place}: array '{column.name}': the run expects {expected} for each step, found {found}{wrong}"
            )


def make_rows(schema: Schema, episode: Items, place: str) -> Items:
    """The rows of an episode of T steps, as a sampler records them.

    An episode with T observations has no observation after its last action. If the episode terminated, its last
    observation is repeated: no agent learns from an observation after a termination. If it did not terminate, its last
    step is left out, and the observation of this step becomes the last one.

    Args:
        schema: of the rows.
        episode: ``obs…`` ``[T + 1 or T, *shape]``, other columns ``[T, *shape]``; ``check_arrays`` has passed.
        place: the file or episode, in messages.

    Returns:
        Columns ``[T + 1, *shape]``, or ``[T, *shape]`` if the last step is left out. The last row is a final row.

    Raises:
        DatasetError: a value does not fit its column, or the episode ends before its last step.
    """
    ends = ends_of(episode, place)
    steps = len(episode["reward"])
    lacks_last = any(len(episode[column.name]) == steps for column in schema.named("obs"))
    if lacks_last and not ends["terminated"][-1]:
        steps -= 1
        ends = {"terminated": ends["terminated"][:steps], "truncated": np.arange(steps) == steps - 1}
    position = np.arange(steps + 1)
    made = {
        VERSION.name: np.zeros(steps + 1),
        FIRST.name: position == 0,
        FINAL.name: position == steps,
        LANE.name: np.zeros(steps + 1),
        **{name: np.append(flags, False) for name, flags in ends.items()},
    }
    rows = {
        column.name: made[column.name].astype(column.dtype)
        if column.name in made
        else _convert(column, episode.get(column.name), steps, place)
        for column in schema.columns
    }
    for name in {"reward", INTERVENED.name} & rows.keys():
        rows[name][-1] = 0  # A final row is no step.
    return rows


def _convert(column: Column, values: Array | None, steps: int, place: str) -> Array:
    """The values of a column, ``[steps + 1, *shape]``: the last one is repeated if there are fewer."""
    if values is None:
        return np.zeros((steps + 1, *column.shape), column.dtype)
    if not _is_alike(column.shape, values.shape[1:]):  # A file of several episodes has told the shape of the first.
        expected, found = list(column.shape), list(values.shape[1:])
        raise DatasetError(f"{place}: array '{column.name}': expected the shape {expected} in each step, found {found}")
    values = values[: steps + 1]
    with np.errstate(over="ignore"):  # Infinity is refused or clipped where the rows are stored.
        cast = values.astype(column.dtype)
    if values.dtype.kind in "iu" and cast.dtype.kind in "iu" and (changed := np.argwhere(cast != values)).size:
        step = int(changed[0][0])
        raise DatasetError(
            f"{place}: array '{column.name}': expected whole numbers that {cast.dtype} can hold, found "
            f"{values[tuple(changed[0])]} in step {step}"
        )
    shaped = cast.reshape(-1, *column.shape)
    missing = steps + 1 - len(shaped)
    return np.concatenate([shaped, np.repeat(shaped[-1:], missing, axis=0)]) if missing else shaped


def _find_mismatch(column: Column, header: ArrayHeader) -> str | None:
    """A hint at what is wrong, maybe empty; None if the array fits."""
    expected, found = np.dtype(column.dtype), header.dtype
    shape, is_picture = header.shape[1:], len(column.shape) == 3
    if not _is_alike(column.shape, shape):
        return _hint_at_shape(column.shape, shape)
    if expected.kind in "iub" and found.kind == "f":
        return (
            "; pictures of floats from 0 to 1 become bytes by (255 * x).round().astype('uint8')" if is_picture else ""
        )
    if expected.kind == "f" and found == np.uint8 and is_picture:
        return "; it is not known whether 255 stands for 1: convert the pictures, or let the environment give bytes"
    is_whole = expected.kind in "iu" and found.kind in "iu"
    return None if is_whole or np.can_cast(found, expected, "same_kind") else ""


def _is_alike(expected: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """Whether shapes are equal; a number and an array of one element count as equal."""
    return expected == found or (expected in ((), (1,)) and found in ((), (1,)))


def _hint_at_shape(expected: tuple[int, ...], found: tuple[int, ...]) -> str:
    if len(expected) != 3 or len(found) != 3:
        return ""
    if (found[2], *found[:2]) == expected:
        return "; its channels come last: np.moveaxis(pictures, -1, 1) puts them first"
    if (*found[1:], found[0]) == expected:
        return "; its channels come first: np.moveaxis(pictures, 1, -1) puts them last"
    return "; pictures are not resized here: convert them as the environment does"


def _describe_missing(column: Column, headers: Iterable[str], place: str) -> str:
    group = column.name.partition("/")[0]
    if group not in ("obs", "action", "reward", "info"):
        return f"column '{column.name}': the run's rows have it, {place} does not"
    return f"{place}: expected an array '{column.name}'{nearest(column.name, headers)}"


def _describe(dtype: DTypeLike, shape: tuple[int, ...]) -> str:
    return f"{np.dtype(dtype)} {list(shape)}"


def as_sent(rows: Items, parts: Parts) -> Items:
    """The rows or items that an actor would send for one whole episode.

    Args:
        rows: of the episode, ``[T + 1, *shape]``, its final row included; with the columns ``parts.rows``.
        parts: of the run.

    Returns:
        Columns ``[n, *shape]`` of ``parts.schema``; first priorities are 1.
    """
    if parts.processors:
        return _processed(rows, parts)
    mapped = map_rows(parts.row_map.map, rows, agreed_schema(parts)) if parts.row_map is not None else rows
    if parts.has_priorities:
        mapped = {**mapped, PRIORITY.name: np.ones(len(rows["reward"]), np.float32)}
    return {column.name: mapped[column.name] for column in parts.schema.columns}


def _processed(rows: Items, parts: Parts) -> Items:
    processor = parts.processors[0]
    processor.reset()
    made = [items for step in _steps(rows, parts) if (items := processor.process(step)) is not None]
    parted = made or [parts.schema.empty(0)]
    return {c.name: np.concatenate([items[c.name] for items in parted]) for c in parts.schema.columns}


def _steps(rows: Items, parts: Parts) -> Iterator[Step]:
    obs, action = _observations(rows, parts), from_columns("action", rows)
    for t in range(len(rows["reward"]) - 1):
        end = bool(rows["terminated"][t]), bool(rows["truncated"][t])
        yield Step(pick_leaves(obs, t), pick_leaves(action, t), float(rows["reward"][t]), pick_leaves(obs, t + 1), *end)


def _observations(rows: Items, parts: Parts) -> Leaves:
    """The T + 1 observations as the agent sees them, ``[T + 1, …]``; stacks of k frames are ``[T + 1, k, …]``."""
    frames: Leaves = from_columns("obs", rows)
    if parts.frame_stack == 1:
        return frames
    newest, back = np.arange(len(rows["reward"])), np.arange(parts.frame_stack)[::-1]
    return pick_leaves(frames, np.maximum(newest[:, None] - back, 0))  # Stacks at the beginning repeat the first frame.
