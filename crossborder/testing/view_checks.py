"""Checks a view."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.data import Array, Items, Schema
from common.lanes.building import spec_of
from common.lanes.lanes import AnyEnv
from common.parts import row_schema
from crossborder.testing import row_memory
from crossborder.testing.play import explaining
from learner.replay.view import Plan, View

LANES = 3
LENGTHS = (1, 7, 2, 40, 3, 15, 1, 4, 90, 5)
"""Lengths in steps of the episodes of a lane; each lane begins at another place of this list."""
LOST = 4
"""One episode in ``LOST`` ends without a final row."""


class RecordedRows:
    """Rows of episodes of lanes that step in turn, as a view sees them; ``first`` and ``end`` can be moved.

    Args:
        schema: of the rows; their values are random.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema, self.rng = schema, np.random.default_rng(0)
        scripts = [list(_script(lane)) for lane in range(LANES)]
        turns = [
            (lane, row) for t in range(max(map(len, scripts))) for lane in range(LANES) for row in scripts[lane][t:][:1]
        ]
        self.first, self.end = 0, len(turns)
        self.episode = np.array([row[0] + 1000 * lane for lane, row in turns])
        """The number of each row's episode, ``[n]``; no two lanes share a number."""
        self.final = np.array([row[2] for _, row in turns])
        self.columns = self._make_columns(turns)
        self._next, self._previous = np.full(self.end, -1), np.full(self.end, -1)
        for lane in range(LANES):
            mine = np.flatnonzero(np.array([at for at, _ in turns]) == lane)
            linked = self.final[mine[:-1]] == self.columns["is_first"][mine[1:]]
            self._next[mine[:-1][linked]], self._previous[mine[1:][linked]] = mine[1:][linked], mine[:-1][linked]
        if not schema.is_rows:
            self._next[:] = self._previous[:] = -1

    def _make_columns(self, turns: list[tuple[int, tuple[int, bool, bool]]]) -> Items:
        n = len(turns)
        columns: Items = {"is_first": np.array([row[1] for _, row in turns])}
        for column in self.schema.columns:
            columns[column.name] = self.rng.integers(0, 2, (n, *column.shape)).astype(column.dtype)
        if self.schema.is_rows:
            columns |= {"first": columns["is_first"], "final": self.final}
        return columns

    def next(self, index: Array) -> Array:
        """The next row in each row's lane; -1 if it is not known."""
        found = self._next[index]
        return np.where((index < 0) | (found >= self.end), -1, found)

    def previous(self, index: Array) -> Array:
        """The previous row in each row's lane; -1 if there is none, or if it has been overwritten."""
        found = self._previous[index]
        return np.where(found < self.first, -1, found)

    def chain(self, index: Array, n: int) -> Array:
        """Each row and the ``n`` rows that follow it in its lane, ``[*index.shape, n + 1]``; -1 for unknown rows."""
        found = [index]
        for _ in range(n):
            found.append(np.where(found[-1] < 0, -1, self.next(found[-1])))
        return np.stack(found, axis=-1)

    def take(self, column: str, index: Array) -> Array:
        """Values of a column, ``[*index.shape, *shape]``."""
        values: Array = self.columns[column][index]
        return values

    def find_settled(self, row: int, reach: int, *, crosses: bool) -> int | None:
        """The row whose arrival decides whether a draw can begin at ``row``; None if that row never arrives."""
        at = row
        for _ in range(reach):
            if self.final[at] and not crosses:
                break
            at = int(self._next[at])
            if at < 0:
                return None
        return at


def _script(lane: int) -> list[tuple[int, bool, bool]]:
    """The rows of a lane: number of the episode, whether the row begins it, whether it is final."""
    rows = []
    for number in range(2 * len(LENGTHS)):
        length = LENGTHS[(number + lane) % len(LENGTHS)]
        rows += [(number, t == 0, False) for t in range(length)]
        rows += [] if number % LOST == LOST - 1 else [(number, False, True)]
    return rows


def check_view(make_view: Callable[..., View], env: AnyEnv | Schema) -> None:
    """Check that a view draws only existing rows, and that its ``steps``, ``reach`` and ``lowest`` are right.

    The check shows it rows of three lanes with episodes of 1 to 90 steps, some without an end, while rows arrive and
    while rows are overwritten.

    Args:
        make_view: the class, or ``functools.partial`` of it with parameters; called as the learner calls it.
        env: an environment of whose rows the view makes batches; or the columns of rows or of self-contained items.
    """
    schema = env if isinstance(env, Schema) else row_schema(spec_of(env))
    assert callable(make_view), (
        f"check_view() takes the class of a view, or functools.partial of it with parameters; found an instance of "
        f"{type(make_view).__name__}"
    )
    view = row_memory.make_view(make_view, schema, make_env=lambda: env)
    assert view.steps >= 1, f"steps is {view.steps}: a draw has at least one step"
    assert view.reach >= 0, f"reach is {view.reach}: a draw needs no or some later rows"
    rows = RecordedRows(schema)
    end = rows.end
    able = _find_able(view, rows)
    assert able.any(), f"can_draw() found no row among {end} in {LANES} lanes at which a draw can begin"
    _check_arrivals(view, rows, able)
    rows.end = end
    for first in (0, end // 3, end // 2):
        rows.first = first
        index = first + np.flatnonzero(_find_able(view, rows))
        _check_plan(view, rows, index)
        _check_choice(view, rows, index)


def _find_able(view: View, rows: RecordedRows) -> Array:
    """The answers of ``can_draw`` for all existing rows, ``[n]`` bool."""
    index = np.arange(rows.first, rows.end)
    with explaining("can_draw() failed: it is given absolute indices [n] of rows that are there; n may be 0"):
        empty, able = view.can_draw(rows, index[:0]), view.can_draw(rows, index)
    for found, asked in ((empty, index[:0]), (able, index)):
        assert isinstance(found, np.ndarray), f"can_draw() gave {type(found).__name__}: return a bool for each row"
        assert (found.shape, found.dtype.kind) == (asked.shape, "b"), (
            f"can_draw() gave {found.dtype} {list(found.shape)} for {len(asked)} rows: return a bool for each"
        )
    return able


def _check_arrivals(view: View, rows: RecordedRows, able: Array) -> None:
    """Check that a row can be drawn as soon as ``reach`` later rows are there, and ever after."""
    settled = np.full(rows.end, rows.end)
    for row in np.flatnonzero(able):
        at = rows.find_settled(int(row), view.reach, crosses=view.crosses_episodes)
        assert at is not None, (
            f"can_draw() is true for row {row}, but reach is {view.reach} and fewer rows of its lane follow: say a "
            "smaller reach"
        )
        settled[row] = at
    before = np.zeros(0, np.bool_)
    for end in range(1, rows.end + 1, 7):
        rows.end = end
        now = _find_able(view, rows)
        lost = np.flatnonzero(before & ~now[: len(before)])
        assert not len(lost), (
            f"can_draw() was true for row {lost[0]}, and false when more rows had come: it must stay true"
        )
        late = np.flatnonzero((settled[:end] < end) & ~now)
        assert not len(late), (
            f"can_draw() is false for row {late[0]} when {view.reach} rows or the end of its episode follow, and true "
            "later: say a larger reach, or crosses_episodes"
        )
        before = now


def _check_plan(view: View, rows: RecordedRows, index: Array) -> None:
    """Check that a plan names existing rows that belong to its draws."""
    with explaining("plan() failed for rows at which can_draw() is true"):
        plan = view.plan(rows, index)
    assert plan.takes, "plan() takes no column: name those of the batch in takes"
    assert np.shape(plan.lowest) == index.shape, f"plan() gave lowest as {list(np.shape(plan.lowest))}: one row a draw"
    for name, (column, _) in plan.takes.items():
        assert column in rows.schema.by_name, f"plan() takes '{name}' from the column '{column}', which is not stored"
    for name, made in plan.made.items():
        assert len(made) == len(index), f"plan() made '{name}' of {len(made)} rows for {len(index)} draws"
        assert name not in plan.takes, f"plan() has '{name}' both in takes and in made"
    for at in _all_rows(plan):
        _check_rows(view, rows, index, plan.lowest, at)


def _all_rows(plan: Plan) -> list[Array]:
    """All rows that a plan names, ``[B, …]`` each."""
    return [*(at for _, at in plan.takes.values()), *plan.also]


def _check_rows(view: View, rows: RecordedRows, index: Array, lowest: Array, at: Array) -> None:
    assert at.dtype == np.int64, f"plan() gave rows as {at.dtype}: indices are int64"
    assert at.shape[:1] == index.shape, f"plan() gave rows {list(at.shape)} for {len(index)} draws: [B, …]"
    at = at.reshape(len(index), -1)
    there = (at >= rows.first) & (at < rows.end)
    assert there.all(), f"plan() names row {at[~there][0]}: expected rows from {rows.first} to before {rows.end}"
    low = lowest[:, None] <= at
    assert low.all(), (
        f"plan() names row {at[~low][0]} below lowest: say the lowest row of each draw, or torn rows will be drawn"
    )
    same = rows.episode[at] == rows.episode[index][:, None]
    if not view.crosses_episodes:
        assert same.all(), "a draw crosses the end of an episode: stop at final rows, or say crosses_episodes"
    else:
        near = rows.episode[at] // 1000 == rows.episode[index][:, None] // 1000
        assert near.all(), "a draw takes rows of another lane: follow next() and previous()"


def _check_choice(view: View, rows: RecordedRows, index: Array) -> None:
    """Check that ``choose`` gives the results of ``can_draw`` and ``plan``."""
    tries = rows.rng.permutation(np.arange(rows.first, rows.end))
    expected = tries[np.isin(tries, index)][:10]
    chosen, plan = view.choose(rows, tries, 10)
    assert chosen.tolist() == expected.tolist(), "choose() gave other rows than those at which can_draw() is true"
    assert len(plan.lowest) == len(chosen), f"choose() planned {len(plan.lowest)} draws for {len(chosen)} rows"
