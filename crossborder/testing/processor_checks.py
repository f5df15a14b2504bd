"""Checks a step processor, and a map of rows."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from common.data import Items, Schema
from common.errors import SchemaMismatchError
from common.interfaces import RowMap, Step, StepProcessor
from common.lanes.building import Env, spec_of
from common.parts import row_schema
from crossborder.testing.play import Policy, explaining, items_of, play
from crossborder.testing.row_memory import rows_of

LENGTHS = (1, 2, 3, 5, 8, 13)
"""Lengths in steps of the episodes that are tried in turn: some shorter, some longer than a processor may look back."""


def check_step_processor(processor: StepProcessor, env: Env, *, steps: int = 300, policy: Policy | None = None) -> None:
    """Check that a processor's items fit its schema and stay within their episodes.

    Args:
        processor: newly made; copied with ``copy.deepcopy``. It must give the same items for the same steps.
        env: the environment that gives the steps.
        steps: the number of steps to play.
        policy: chooses actions if random actions are not allowed.
    """
    spec, fresh = spec_of(env), copy.deepcopy(processor)
    with explaining("schema() failed: it must return a crossborder.Schema for any spec the processor can work with"):
        schema = processor.schema(spec)
    assert isinstance(schema, Schema), f"schema() gave {type(schema).__name__}: return a crossborder.Schema"
    assert processor.schema(spec) == schema, "schema() twice gave different columns: it must depend on the spec alone"
    episodes = play(env, steps, policy=policy)
    given = 0
    for episode in episodes:
        processor.reset()
        for step in episode:
            items = processor.process(step)
            given += 0 if items is None else _count(schema, items)
    assert given, (
        f"process() gave no item in {steps} steps: return items when they are ready, at the latest when an episode ends"
    )
    _check_episodes(processor, fresh, _cut([step for episode in episodes for step in episode]))


def check_row_map(row_map: RowMap, env: Env, *, steps: int = 300, policy: Policy | None = None) -> None:
    """Check that a map keeps the number of rows, that the rows fit its schema, and that the map has no memory.

    Args:
        row_map: newly made.
        env: the environment that gives the rows.
        steps: the number of steps to play.
        policy: chooses actions if random actions are not allowed.
    """
    assert isinstance(row_map, RowMap), f"expected a crossborder.RowMap, found {type(row_map).__name__}"
    given = row_schema(spec_of(env))
    with explaining("schema() failed: return the schema it is given, or schema.plus(column)"):
        schema = row_map.schema(given)
    assert isinstance(schema, Schema), f"schema() gave {type(schema).__name__}: return a crossborder.Schema"
    assert schema.is_rows, "schema() must keep the columns that every row ends with"
    rows = rows_of(given, play(env, steps, policy=policy))
    count = len(rows["first"])
    mapped = row_map.map({name: column.copy() for name, column in rows.items()})
    found = _count(schema, mapped, "map()")
    assert found == count, f"map() of {count} rows gave {found}: return the same number, in the same order"
    for name in ("first", "final", "lane", "version"):
        assert np.array_equal(mapped[name], rows[name]), f"map() changed '{name}': leave it as it is"
    frozen = {name: column.copy() for name, column in rows.items()}
    for column in frozen.values():
        column.flags.writeable = False
    with explaining("map() writes into the arrays it is given: make new ones"):
        again = row_map.map(frozen)
    halves = [row_map.map({name: c[part] for name, c in rows.items()}) for part in (slice(7), slice(7, None))]
    for name, column in mapped.items():
        joined = np.concatenate([half[name] for half in halves])
        assert all(np.array_equal(column, other) for other in (again[name], joined)), (
            f"map() gave another '{name}' for the same rows: it must remember nothing, and no row may depend on others"
        )


def _count(schema: Schema, items: Items, where: str = "process()") -> int:
    """Count the items, and check that they fit the schema and are finite."""
    assert isinstance(items, dict), f"{where} gave {type(items).__name__}: return a dict of columns, or None"
    names = {column.name for column in schema.columns}
    more, less = sorted(items.keys() - names), sorted(names - items.keys())
    assert not more, f"{where} gave columns that schema() does not name: {', '.join(more)}"
    assert not less, f"{where} lacks columns that schema() names: {', '.join(less)}"
    try:
        count = schema.count(items)
    except SchemaMismatchError as error:
        raise AssertionError(
            f"{where} gave items that do not fit schema(): {error}; every column is [n, *shape] with the same n"
        ) from error
    for name, column in items.items():
        finite = column.dtype.kind != "f" or np.isfinite(column).all()
        assert finite, f"{where} gave '{name}' values that are not finite: the learner refuses them"
    return count


def _cut(steps: list[Step]) -> list[list[Step]]:
    """Cut steps into episodes of ``LENGTHS`` that end in turn by termination, by truncation, and by an early reset."""
    episodes, start = [], 0
    for i in range(3 * len(LENGTHS)):
        length = LENGTHS[i % len(LENGTHS)]
        rows = [replace(steps[(start + n) % len(steps)], terminated=False, truncated=False) for n in range(length)]
        rows = [replace(step, reward=step.reward + i) for step in rows]  # So no two episodes are equal.
        rows[-1] = replace(rows[-1], terminated=i % 3 == 0, truncated=i % 3 == 1)
        episodes.append(rows)
        start += length
    return episodes


def _check_episodes(processor: StepProcessor, fresh: StepProcessor, episodes: list[list[Step]]) -> None:
    """Check that an episode gives a used processor the same items as a new one."""
    for episode in episodes:
        alone, after_others = items_of(copy.deepcopy(fresh), [episode]), items_of(processor, [episode])
        same = alone.keys() == after_others.keys() and all(
            np.array_equal(alone[name], after_others[name]) for name in alone
        )
        assert same, (
            f"an item crosses an episode boundary: an episode of {len(episode)} steps gave other items after another "
            "episode than by itself; reset() must forget everything"
        )
