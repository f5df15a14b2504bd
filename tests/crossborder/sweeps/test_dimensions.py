from __future__ import annotations

import doctest
from datetime import date
from typing import Any

import optuna
import pytest

from crossborder.sweeps import dimensions
from crossborder.sweeps.dimensions import parse_dimension


def suggested(value: Any, n: int = 50) -> list[Any]:
    """What trials choose."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study, dimension = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)), parse_dimension(value)
    return [dimension.suggest(study.ask(), "key") for _ in range(n)]


def test_a_list_gives_each_of_its_values_of_any_kind() -> None:
    values = [1, 0.5, None, True, "text", [64, 64], {"kind": "adam"}]
    found = suggested(values, 200)
    assert all(value in found for value in values)
    assert all(value in values for value in found)


def test_a_range_gives_numbers_between_its_ends() -> None:
    assert all(-1 <= value <= 2 for value in suggested({"uniform": [-1, 2]}))
    found = suggested({"int": [2, 4]})
    assert {*found} == {2, 3, 4}
    assert all(type(value) is int for value in found)
    assert {*map(type, suggested({"log_int": [1, 1024]}))} == {int}


def test_a_logarithmic_range_gives_each_power_of_ten_as_often() -> None:
    found = suggested({"log": ["1e-6", "1e-2"]}, 400)
    below = sum(value < 1e-4 for value in found)
    assert 150 < below < 250


def test_the_first_value_is_one_that_may_be_chosen() -> None:
    assert parse_dimension([[64], [32]]).first() == [64]
    first = parse_dimension({"log_int": [8, 64]}).first()
    assert (first, type(first)) == (8, int)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "expected values in the list, found none"),
        ([date(2020, 1, 1)], r"expected numbers, texts, .*, found datetime.date\(2020, 1, 1\); put a date in quotes"),
        ([{"key": b"bytes"}], "expected numbers, texts, .*, found "),
        (3, "expected a list of values or one of uniform, log, int, log_int"),
        ({"log": [1, 2], "int": [1, 2]}, "expected a list of values or one of"),
        ({"lg": [1, 2]}, r"unknown range 'lg' \(did you mean 'log'\?\)"),
        ({"log": [0, 2]}, "log: expected numbers above 0"),
        ({"log_int": [0, 2]}, "log_int: expected numbers above 0"),
        ({"uniform": [2, 2]}, r"uniform: expected \[LOW, HIGH\], two numbers in order, found \[2, 2\]"),
        ({"uniform": [1, 2, 3]}, "two numbers in order"),
        ({"uniform": "12"}, "two numbers in order"),
        ({"uniform": ["a", "b"]}, "two numbers in order"),
        ({"uniform": [0, float("inf")]}, "two numbers in order"),
        ({"int": [1, 2.5]}, "two integers in order"),
    ],
)
def test_a_value_that_is_neither_a_list_nor_a_range_is_refused(value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_dimension(value)


def test_the_examples_are_right() -> None:
    assert doctest.testmod(dimensions).failed == 0
