"""Nested plain values, as YAML gives them: overlaid with other values, flattened, and assigned one by one."""

from __future__ import annotations

import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from common.depth import bound_depth
from common.errors import ConfigError
from common.hints import nearest_path

MOST_INTEGER: Final = (1 << 63) - 1
"""The largest integer of a configuration."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, texts with NUL, and integers that 64 bits cannot hold.

    yaml would silently take the last value of the key. numpy, torch and the wire have no larger integers. No path, host
    and word of a command line may have NUL: the system would raise where the text is used. 1e-3 is a number, as in YAML
    1.2; in YAML 1.1, which yaml reads, a number needs a point and a sign.
    """

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value:
            raise ValueError(f"line {node.start_mark.line + 1}: expected texts without NUL, found {node.value!r}")
        if re.search("[\ud800-\udc7f\udd00-\udfff]", node.value):  # The others stand for bytes of a path, as in Python.
            line = node.start_mark.line + 1
            raise ValueError(f"line {line}: expected texts of whole characters, found {node.value!r:.80}")
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if not -MOST_INTEGER <= value <= MOST_INTEGER:
            line = node.start_mark.line + 1
            raise ValueError(f"line {line}: expected integers of up to {MOST_INTEGER}, found {node.value}")
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Merge keys (<<) are resolved later. A merged mapping may have a key that the mapping itself has.
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                first = lines[key.tag, key.value]
                raise ValueError(f"line {line}: expected the key '{key.value}' once, found it in line {first} too")
            lines[key.tag, key.value] = line
        return node


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """Puts quotes around each text that ``_Loader`` would read as a number."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def to_yaml(values: dict[str, Any]) -> str:
    """Values as the text that ``parse_yaml`` reads back."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    return text


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, as ``yaml.safe_load`` reads it, but 1e-3 is a number.

    Raises:
        yaml.YAMLError: it is no YAML.
        ValueError: a key stands twice in a mapping, a text has NUL, an integer is too large, a value cannot be, such as
            the date 2024-13-01, or lists and mappings are nested too deep.
    """
    loader = _Loader(text)
    try:
        return bound_depth(loader.get_single_data)
    finally:
        loader.dispose()


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or holds no mapping.
    """
    try:
        values = parse_yaml(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{nearest_path(path)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: for a value such as the date 2024-13-01.
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path}: expected a mapping, found {type(values).__name__}")
    return values or {}


def overlay(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``values``, overwritten by ``changes``; sections that both have are overlaid in turn."""
    result = dict(values)
    for key, change in changes.items():
        both = isinstance(values.get(key), dict) and isinstance(change, dict)
        result[key] = overlay(values[key], change) if both else change
    return result


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value that is no section, by its path.

    >>> flatten({"env": {"target": "a:b", "params": {"n": 1}}, "envs_per_actor": 2})
    {'env.target': 'a:b', 'env.params.n': 1, 'envs_per_actor': 2}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def assign(values: dict[str, Any], assignment: str) -> None:
    """Apply one ``a.b=c`` of the command line to ``values``; ``c`` is read as YAML.

    Raises:
        ConfigError: ``assignment`` has no ``=``, or its path leads through a value that is no section.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set: expected KEY.KEY=VALUE, found '{assignment}'")
    try:
        value = parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        # A YAMLError has lines with a picture of the text.
        why = f" ({error})" if isinstance(error, ValueError) else ""
        if text.startswith("[") and text.partition("]")[2].startswith(":"):  # An address of IPv6.
            why = f"; quote a text that begins so: --set \"{path}='{text}'\""
        raise ConfigError(f"--set {path}: expected a YAML value, found '{text}'{why}") from error
    put(values, path, value)


def quote(text: str) -> str:
    """A text as ``c`` of an assignment ``a.b=c``, whatever characters it has.

    >>> quote("runs/1: a")
    '"runs/1: a"'
    """
    # JSON would write a character beyond U+FFFF as two halves, which YAML does not put together.
    quoted: str = yaml.safe_dump(text, default_style='"', width=sys.maxsize)
    return quoted.rstrip("\n")


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a copy of a value at the path ``a.b`` into ``values``; a section on the way that is missing or null is made.

    Raises:
        ConfigError: the path leads through a value that is no section.
    """
    *parents, last = path.split(".")
    for name in parents:
        key = _find_key(values, name)
        if values.get(key) is None:
            values[key] = {}
        if not isinstance(values[key], dict):
            raise ConfigError(f"{path}: '{name}' is a value, not a section")
        values = values[key]
    values[_find_key(values, last)] = deepcopy(value)


def _find_key(values: dict[str, Any], name: str) -> Any:
    """The key that is written as ``name``: YAML may have read it as a number."""
    return next((key for key in values if str(key) == name), name)
