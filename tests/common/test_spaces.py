from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from common.data import Column
from common.errors import ConfigError
from common.leaves import copy_leaves, empty_leaves, pick_leaves, put_leaves
from common.spaces import columns_of, convert, flatten, from_columns, leaves_of, narrow, stack, to_columns, unflatten

BOX = spaces.Box(-1, 1, (2, 3), np.float32)
LEAVES: dict[str, Space[Any]] = {
    "box": BOX,
    "number": spaces.Box(-1, 1, (), np.float32),
    "picture": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(5),
}
NESTED: dict[str, Space[Any]] = {
    "dict": spaces.Dict({"b": BOX, "a": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), BOX)),
    "both": spaces.Dict(
        {
            "arm": spaces.Dict({"joints": BOX, "grips": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(4)])}),
            "goal": spaces.MultiDiscrete([3, 3]),
        }
    ),
}
SPACES = LEAVES | NESTED


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_an_element_is_the_same_after_a_round_trip_through_its_leaves(space: Space[Any]) -> None:
    for _ in range(5):
        element = space.sample()
        assert_same(unflatten(space, flatten(space, element)), element)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_batch_of_elements_has_the_same_leaves_as_each_element(space: Space[Any]) -> None:
    elements = [space.sample() for _ in range(3)]
    batch = concatenate(space, elements, create_empty_array(space, 3))  # type: ignore[arg-type]
    leaves = flatten(space, batch)
    for j, element in enumerate(elements):
        assert_same(pick_leaves(leaves, j), flatten(space, element))
    assert_same(unflatten(batch_space(space, 3), leaves), batch)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_leaves_are_set_lane_by_lane_and_become_columns(space: Space[Any]) -> None:
    elements = [space.sample() for _ in range(3)]
    leaves = empty_leaves(space, 3)
    for j, element in enumerate(elements):
        put_leaves(leaves, j, flatten(space, element))
    columns = to_columns("obs", leaves)
    assert {name: (column.dtype, column.shape[1:]) for name, column in columns.items()} == {
        column.name: (np.dtype(column.dtype), column.shape) for column in columns_of("obs", space)
    }
    for j, element in enumerate(elements):
        found = pick_leaves(from_columns("obs", columns), j)
        assert_same(unflatten(space, found), element)
    kept = copy_leaves(leaves)
    put_leaves(leaves, slice(0, 2), pick_leaves(leaves, [2, 2]))
    assert_same(pick_leaves(kept, 0), flatten(space, elements[0]))
    assert_same(pick_leaves(leaves, 0), flatten(space, elements[2]))


def test_columns_that_a_batch_lacks_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"needs a column next_obs, but a batch has obs/a, reward: replay\.view"):
        from_columns("next_obs", {"obs/a": 1, "reward": 2})


def test_leaves_of_another_shape_are_refused() -> None:
    leaves = empty_leaves(BOX, 2)
    with pytest.raises(ValueError, match=r"expected the shape \[2, 3\], found \[3\]"):
        put_leaves(leaves, 0, np.zeros(3, np.float32))


def test_leaves_are_named_by_their_paths() -> None:
    assert list(leaves_of(NESTED["both"])) == ["arm/grips/0", "arm/grips/1", "arm/joints", "goal"]
    assert [column.name for column in columns_of("action", NESTED["tuple"])] == ["action/0", "action/1"]
    assert list(leaves_of(BOX)) == [""]


@pytest.mark.parametrize(
    ("space", "column"),
    [
        (spaces.Box(-1, 1, (4, 84, 84), np.float32), Column("x", "<f4", (4, 84, 84))),
        (spaces.Discrete(3), Column("x", "<i8")),
        (spaces.MultiBinary(5), Column("x", "|i1", (5,))),
        (spaces.MultiDiscrete([2, 3]), Column("x", "<i8", (2,))),
    ],
)
def test_a_leaf_has_a_column(space: Space[Any], column: Column) -> None:
    assert columns_of("x", space) == (column,)


@pytest.mark.parametrize(
    ("space", "bounds"),
    [
        (spaces.Discrete(3), ["0 to 2"]),
        (spaces.Discrete(3, start=-1), ["-1 to 1"]),
        (spaces.MultiDiscrete([2, 3]), ["0 to 1", "0 to 2"]),
        (spaces.MultiDiscrete([2, 3], start=[5, 0]), ["5 to 6", "0 to 2"]),
        (spaces.MultiBinary(5), ["0 to 1"]),
        (spaces.Box(-2, 2, (3,), np.float32), ["-2 to 2"]),
        (spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)), ["-1 to 1", "at least 0"]),
        (spaces.Box(0, 10, (1,), np.int64), ["0 to 10"]),
    ],
)
def test_the_column_of_a_space_has_the_bounds_of_its_elements(space: Space[Any], bounds: list[str]) -> None:
    (column,) = columns_of("x", space)
    assert column.domain is not None
    assert [column.domain.text(element) for element in range(len(bounds))] == bounds
    assert column.domain.holds(np.array([space.sample() for _ in range(50)]).reshape(-1))


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, np.inf, (3,), np.float32), LEAVES["picture"]])
def test_a_space_that_excludes_nothing_has_a_column_without_a_domain(space: Space[Any]) -> None:
    assert columns_of("x", space)[0].domain is None


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "space: expected Box, Discrete"),
        (spaces.Dict({"a": spaces.Sequence(BOX)}), "space at 'a': expected Box, Discrete"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2, 0))}), "space at 'a': expected at least one number, found Box"),
        (spaces.Box(-1, 1, (0,)), "space: expected at least one number, found Box"),
        (spaces.Dict({}), "space: expected at least one leaf, found Dict"),
        (spaces.Tuple([spaces.Dict({})]), "space: expected at least one leaf, found Tuple"),
        (spaces.Dict({"a/b": BOX}), "expected keys of text without '/', found 'a/b'"),
    ],
)
def test_a_space_that_cannot_be_recorded_is_refused_by_its_place(space: Space[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        leaves_of(space)


def test_float64_becomes_float32_at_any_depth() -> None:
    wide = spaces.Box(np.array([-0.1, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64)
    found = narrow(spaces.Dict({"a": spaces.Tuple((wide, spaces.Discrete(2))), "b": BOX}))
    assert [leaf.dtype for leaf in leaves_of(found).values()] == [np.float32, np.int64, np.float32]
    assert narrow(BOX) is BOX


@pytest.mark.parametrize(
    ("given", "kept"), [(np.longdouble, "<f4"), (">f8", "<f4"), (">f4", "<f4"), (">i2", "<i2"), (np.float16, "<f2")]
)
def test_dtypes_that_torch_or_rows_cannot_hold_are_recorded_in_others(given: Any, kept: str) -> None:
    found = narrow(spaces.Box(-9, 9, (2,), np.dtype(given)))
    assert isinstance(found, spaces.Box)
    assert (found.dtype, found.low.dtype, found.low.tolist()) == (np.dtype(kept), np.dtype(kept), [-9, -9])


def test_a_float_beyond_the_dtype_of_its_leaf_becomes_infinite_without_a_warning() -> None:
    assert convert([1e300, -1e300, 0.5], np.float32).tolist() == [np.inf, -np.inf, 0.5]


def test_frames_are_stacked_at_any_depth_and_only_boxes_can_be() -> None:
    found = stack(spaces.Dict({"a": spaces.Tuple((BOX,)), "b": LEAVES["picture"]}), 3)
    assert [leaf.shape for leaf in leaves_of(found).values()] == [(3, 2, 3), (3, 4, 84, 84)]
    with pytest.raises(ConfigError, match=r"env\.frame_stack: expected observations of Box leaves, found Discrete"):
        stack(spaces.Dict({"a": BOX, "b": spaces.Discrete(2)}), 3)


class Box:
    """Stands for a space of another package; it prints as gymnasium's does."""

    def __repr__(self) -> str:
        return "Box(-1.0, 1.0, (3,), float32)"


def test_a_space_of_another_package_is_refused_by_its_package() -> None:
    space: Any = Box()
    with pytest.raises(ConfigError, match="a Box of the package tests: crossborder needs the spaces of gymnasium"):
        leaves_of(space)


def test_a_leaf_that_cannot_be_recorded_can_be_left_out_as_the_error_says() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 1, (2,)), "mission": spaces.Text(9)})
    with pytest.raises(ConfigError, match=r"space at 'mission'.*gymnasium\.wrappers:FilterObservation"):
        leaves_of(space)
