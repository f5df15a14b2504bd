"""Nested plain values, as YAML gives them: laid over one another, and single ones assigned."""

from __future__ import annotations

from typing import Any

import yaml

from common.errors import ConfigError


def laid_over(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``values`` with ``changes`` in their place; where both have a section, theirs are laid over one another too."""
    result = dict(values)
    for key, change in changes.items():
        both = isinstance(values.get(key), dict) and isinstance(change, dict)
        result[key] = laid_over(values[key], change) if both else change
    return result


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value that is no section, by its path.

    >>> flat({"env": {"target": "a:b", "params": {"n": 1}}, "envs_per_actor": 2})
    {'env.target': 'a:b', 'env.params.n': 1, 'envs_per_actor': 2}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def assign(values: dict[str, Any], assignment: str) -> None:
    """Apply one ``a.b=c`` of the command line to ``values``; ``c`` is read as YAML.

    Raises:
        ConfigError: it is no assignment, or leads through a value that is no section.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set: expected KEY.KEY=VALUE, found '{assignment}'")
    *parents, last = path.split(".")
    for name in parents:
        inner = values.setdefault(_key(values, name), {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {path}: '{name}' is a value, not a section")
        values = inner
    try:
        values[_key(values, last)] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {path}: expected a YAML value, found '{text}'") from error


def _key(values: dict[str, Any], name: str) -> Any:
    """The key that is written like this, also where YAML has read it as a number."""
    return next((key for key in values if str(key) == name), name)
