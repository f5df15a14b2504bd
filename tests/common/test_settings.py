from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from pydantic import Field, PositiveInt, ValidationError, model_validator

from common.errors import ConfigError
from common.settings import HomePath, Settings, unknown_before, validate


class Inner(Settings):
    capacity: PositiveInt = Field(10, description="Items kept.")


class Red(Settings):
    kind: Literal["red"] = Field("red", description="Red.")
    depth: PositiveInt = Field(1, description="How deep.")


class Blue(Settings):
    kind: Literal["blue"] = Field("blue", description="Blue.")
    inner: Inner = Field(Inner(), description="A section.")


class Outer(Settings):
    name: str = Field(description="A name.")
    inner: Inner = Field(Inner(), description="A section.")
    perhaps: Inner | None = Field(None, description="A section that may be missing.")
    colour: Red | Blue = Field(Red(), discriminator="kind", description="One of several sections.")
    named: dict[str, Inner] = Field(default_factory=dict, description="Sections by name.")


def problems(values: object, where: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate(Outer, values, where)
    return str(caught.value).splitlines()


def test_good_values_become_the_model() -> None:
    found = validate(Outer, {"name": "x", "inner": {"capacity": 3}})
    assert found == Outer(name="x", inner=Inner(capacity=3))


def test_an_unknown_key_names_the_nearest() -> None:
    assert problems({"name": "x", "iner": {}}) == ["iner: unknown key (did you mean 'inner'?)"]


@pytest.mark.parametrize("section", ["inner", "perhaps"])
def test_an_unknown_key_in_a_section_names_the_nearest_of_that_section(section: str) -> None:
    expected = f"{section}.capcity: unknown key (did you mean 'capacity'?)"
    assert problems({"name": "x", section: {"capcity": 3}}) == [expected]


def test_an_unknown_key_in_a_section_that_has_a_name_names_the_nearest_of_that_section() -> None:
    expected = "named.mine.capcity: unknown key (did you mean 'capacity'?)"
    assert problems({"name": "x", "named": {"mine": {"capcity": 3}}}) == [expected]


def test_an_unknown_key_without_a_similar_one_lists_all_keys() -> None:
    assert problems({"name": "x", "zzz": 1}) == ["zzz: unknown key (known: colour, inner, name, named, perhaps)"]


def test_a_missing_value_and_a_wrong_one_are_told_apart_one_line_each() -> None:
    missing, wrong = problems({"inner": {"capacity": -1}})
    assert missing == "name: expected a value, found none"
    assert wrong.startswith("inner.capacity: ")
    assert wrong.endswith("greater than 0, found -1")


def test_a_section_of_several_kinds_is_read_by_its_kind() -> None:
    found = validate(Outer, {"name": "x", "colour": {"kind": "blue", "inner": {"capacity": 3}}})
    assert found.colour == Blue(inner=Inner(capacity=3))


@pytest.mark.parametrize(
    ("colour", "problem"),
    [
        ({"kind": "red", "deph": 1}, r"^colour\.deph: unknown key \(did you mean 'depth'\?\)$"),
        ({"kind": "blue", "depth": 1}, r"^colour\.depth: unknown key \(known: inner, kind\)$"),
        ({"kind": "red", "depth": 0}, r"^colour\.depth: .*greater than 0, found 0$"),
        ({"kind": "blue", "inner": {"capcity": 1}}, r"^colour\.inner\.capcity: unknown key .*'capacity'\?\)$"),
        ({"kind": "green"}, r"^colour\.kind: expected one of 'red', 'blue', found 'green'$"),
        ({"depth": 1}, r"^colour\.kind: expected a value, found none$"),
    ],
)
def test_problems_in_a_section_of_several_kinds_have_the_place_in_the_file(
    colour: dict[str, object], problem: str
) -> None:
    (line,) = problems({"name": "x", "colour": colour})
    assert re.search(problem, line)


def test_problems_have_the_place_of_their_values() -> None:
    assert problems({"name": "x", "iner": 1}, where="agent.params") == [
        "agent.params.iner: unknown key (did you mean 'inner'?)"
    ]


def test_a_rule_of_ours_says_itself_what_it_found() -> None:
    class Pair(Settings):
        low: int = Field(0, description="Less.")
        high: int = Field(1, description="More.")

        @model_validator(mode="after")
        def _is_ordered(self) -> Pair:
            if self.low > self.high:
                raise ValueError(f"low ({self.low}) is above high ({self.high})")
            return self

    for where, problem in (("", "low (3) is above high (1)"), ("pair", "pair: low (3) is above high (1)")):
        with pytest.raises(ConfigError) as caught:
            validate(Pair, {"low": 3}, where)
        assert str(caught.value) == problem


def test_a_truth_value_is_no_number() -> None:
    expected = ["inner: capacity: expected a number, found true"]
    assert problems({"name": "a", "inner": {"capacity": True}}) == expected


def test_a_key_that_is_no_text_is_refused() -> None:
    (line,) = problems({"name": "a", True: 2})
    assert line == "config: expected texts as keys, found True"


def test_something_else_than_a_mapping_is_refused() -> None:
    (line,) = problems([1, 2])
    assert line.startswith("config: ")
    assert line.endswith("found [1, 2]")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(Inner(), "capacity", 4)  # noqa: B010 - mypy knows it too


def test_a_default_that_breaks_its_own_rule_is_found() -> None:
    class Wrong(Settings):
        size: PositiveInt = Field(0, description="A size.")

    with pytest.raises(ConfigError, match=r"size: .*greater than 0, found 0"):
        validate(Wrong, {})


class Grown(Settings):
    LATER = frozenset({"added", "also"})

    old: int = Field(1, description="Known for long.")
    added: int | None = Field(None, description="New.")
    also: dict[str, int] = Field(default_factory=dict, description="New too.")


class Holder(Settings):
    one: Grown = Field(Grown(), description="A section.")
    several: tuple[Grown, ...] = Field((), description="Sections.")
    none: Grown | None = Field(None, description="A section that may be missing.")


def test_what_the_former_release_does_not_know_is_left_out_as_long_as_it_has_its_default() -> None:
    held = Holder(several=(Grown(), Grown(added=3), Grown(added=0, also={"a": 1})))
    assert held.model_dump(mode="json", exclude=unknown_before(held)) == {
        "one": {"old": 1},
        "several": [{"old": 1}, {"old": 1, "added": 3}, {"old": 1, "added": 0, "also": {"a": 1}}],
        "none": None,
    }
    assert validate(Holder, held.model_dump(mode="json", exclude=unknown_before(held))) == held


WORDS = "; YAML takes on, off, yes and no for truth values: put quotes around such a text"


class Kinds(Settings):
    units: tuple[int, ...] = Field((64,), description="A list.")
    steps: int = Field(1, description="An integer.")
    rate: float = Field(1.0, description="A number.")
    name: str = Field("", description="A text.")
    is_on: bool = Field(False, description="A truth value.")
    part: Inner = Field(Inner(), description="A section.")
    choice: Literal["a", "b"] = Field("a", description="One of two.")
    word: str = Field("a", pattern="^[a-z]+$", description="A word.")
    either: str | dict[str, Any] | None = Field(None, description="A text or a section.")
    place: HomePath | None = Field(None, description="A path.")
    share: float = Field(0.5, gt=0, description="Above 0.")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="A list with a value.")
    parts: dict[str, int] = Field({}, max_length=1, description="A mapping with one value.")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("units", 64, "expected a list, found 64"),
        ("steps", "many", "expected an integer, found 'many'"),
        ("steps", 1.5, "expected an integer, found 1.5"),
        ("rate", "fast", "expected a number, found 'fast'"),
        ("name", 1, "expected a text, found 1"),
        ("name", True, f"expected a text, found True{WORDS}"),
        ("choice", False, f"expected 'a' or 'b', found False{WORDS}"),
        ("units", True, "expected a list, found True"),
        ("is_on", "perhaps", "expected true or false, found 'perhaps'"),
        ("part", 3, "expected keys and values, found 3"),
        ("steps", 1e308, "expected a smaller integer, found 1e+308"),
        ("steps", "x" * 5000, f"expected an integer, found '{'x' * 199}…"),
        ("word", "a/b", "expected a text that matches '^[a-z]+$', found 'a/b'"),
        ("either", 3, "expected a text or keys and values, found 3"),
        ("place", "", "expected a path, found ''"),
        ("choice", "c", "expected 'a' or 'b', found 'c'"),
        ("share", 0.0, "expected a number greater than 0, found 0.0"),
        ("seeds", [], "expected at least 1 item, found []"),
        ("parts", {"a": 1, "b": 2}, "expected at most 1 item, found {'a': 1, 'b': 2}"),
    ],
)
def test_a_value_of_another_kind_is_explained_in_the_words_of_yaml(key: str, value: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: {re.escape(problem)}$"):
        validate(Kinds, {key: value})
