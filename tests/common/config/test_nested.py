from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config.nested import assign, flatten, overlay, parse_yaml, put, quote, read_yaml, to_yaml
from common.errors import ConfigError


@pytest.mark.parametrize(("text", "values"), [(b"", {}), (b"# nothing yet\n", {}), (b"a: {b: 1}", {"a": {"b": 1}})])
def test_a_file_is_read_as_a_mapping(tmp_path: Path, text: bytes, values: dict[str, Any]) -> None:
    (tmp_path / "file.yaml").write_bytes(text)
    assert read_yaml(tmp_path / "file.yaml") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [1", "not valid YAML"),
        (b"a: 2024-13-01", "not valid YAML: month must be in 1"),
        (b"a: 1\nb: {c: 1}\na: 2", "not valid YAML: line 3: expected the key 'a' once, found it in line 1 too"),
        (b"b:\n  - {c: 1}\n  - c: 1\n    c: 1", "not valid YAML: line 4: expected the key 'c' once"),
        (b'a: 1\nb: "x\\ud800"', r"not valid YAML: line 2: expected texts of whole characters, found 'x\\ud800'"),
        (b'a: 1\nb: ["x\\0"]', r"not valid YAML: line 2: expected texts without NUL, found 'x\\x00'"),
        (
            b"a: 1\nb: [99999999999999999999]",
            r"not valid YAML: line 2: expected integers of up to 9223372036854775807, found",
        ),
        (b"a: -0xffffffffffffffffff", r"not valid YAML: line 1: expected integers of up to \d+, found -0xffff"),
        (b"[]", "expected a mapping, found list"),
        (b"0", "expected a mapping, found int"),
        (b"\xff\xfe\x00a", "cannot be read"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "file.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=rf"file\.yaml: {message}"):
        read_yaml(tmp_path / "file.yaml")


def test_a_merged_mapping_may_have_a_key_that_the_mapping_itself_has(tmp_path: Path) -> None:
    """yaml makes ``third`` before ``second``, whose keys it merges, since ``second`` lies deeper."""
    text = "{first: &a {lr: 1, tau: 1}, deep: {second: &b {<<: *a, lr: 2}}, third: {<<: *b, tau: 3}}"
    (tmp_path / "file.yaml").write_text(text)
    found = read_yaml(tmp_path / "file.yaml")
    assert found == {
        "first": {"lr": 1, "tau": 1},
        "deep": {"second": {"lr": 2, "tau": 1}},
        "third": {"lr": 2, "tau": 3},
    }


def test_a_value_of_the_command_line_has_each_key_once() -> None:
    with pytest.raises(ConfigError, match=r"--set env: expected a YAML value, found '\{a: 1, a: 2\}'"):
        assign({}, "env={a: 1, a: 2}")


def test_an_integer_of_the_command_line_fits_64_bits() -> None:
    values: dict[str, Any] = {}
    assign(values, "seed=9223372036854775807")
    assert values == {"seed": 9223372036854775807}
    with pytest.raises(
        ConfigError, match=r"--set seed: .*found '9223372036854775808' \(line 1: expected integers of up"
    ):
        assign({}, "seed=9223372036854775808")


@pytest.mark.parametrize("text", ["", "null", "a: b # c", "runs/\U0001f916", "\udcff", "two\nlines", "x" * 200])
def test_a_quoted_text_is_assigned_unchanged_whatever_characters_it_has(text: str) -> None:
    values: dict[str, Any] = {}
    assign(values, f"run_dir={quote(text)}")
    assert values == {"run_dir": text}


@pytest.mark.parametrize(
    ("values", "changes", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"s": {"a": 1, "b": {"x": 1}}}, {"s": {"b": {"y": 2}}}, {"s": {"a": 1, "b": {"x": 1, "y": 2}}}),
        ({"s": {"a": 1}}, {"s": None}, {"s": None}),
        ({"s": 1}, {"s": {"a": 1}}, {"s": {"a": 1}}),
        ({"s": [1, 2]}, {"s": [3]}, {"s": [3]}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_values_are_overlaid_section_by_section(
    values: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(values)
    assert overlay(values, changes) == expected
    assert repr(values) == before


def test_a_number_among_the_keys_is_found_as_it_is_written() -> None:
    values: dict[Any, Any] = {"actors": {1: {"lr": 0.1}, 2: 0}}
    assign(values, "actors.1.lr=0.2")
    assign(values, "actors.2=5")
    assign(values, "actors.3=7")
    assert values == {"actors": {1: {"lr": 0.2}, 2: 5, "3": 7}}


def test_a_value_is_put_as_a_copy_so_that_a_later_one_does_not_change_it() -> None:
    values: dict[str, Any] = {}
    params = {"lr": 0.1}
    put(values, "agent.params", params)
    put(values, "agent.params.lr", 0.2)
    assert (values, params) == ({"agent": {"params": {"lr": 0.2}}}, {"lr": 0.1})


def test_a_section_that_is_null_is_made_for_a_value_in_it() -> None:
    values: dict[str, Any] = {"replay": {"prioritized": None}}
    assign(values, "replay.prioritized.alpha=0.7")
    assert values == {"replay": {"prioritized": {"alpha": 0.7}}}


def test_nested_values_are_flattened_to_their_paths() -> None:
    values = {"env": {"target": "a:b", "params": {"n": 1, "list": [1, 2]}}, "envs_per_actor": 2, "empty": {}}
    assert flatten(values) == {
        "env.target": "a:b",
        "env.params.n": 1,
        "env.params.list": [1, 2],
        "envs_per_actor": 2,
    }


@pytest.mark.parametrize("text", ["1e-3", "1E3", "+1e3", "-1.e3", ".5e+2", "1.5e-07"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    found = parse_yaml(f"params: {{noise: {text}, name: '{text}'}}")
    assert found == {"params": {"noise": float(text), "name": text}}
    assert parse_yaml(to_yaml(found)) == found


@pytest.mark.parametrize("text", ["1e", "e3", "0x1e3g", "1e-3s", "1_e3"])
def test_other_texts_with_an_e_stay_texts(text: str) -> None:
    assert parse_yaml(f"a: {text}") == {"a": text}
