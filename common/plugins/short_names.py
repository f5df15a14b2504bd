"""Configurations may name the parts of crossborder shortly, such as ``DQN``; what is recorded names them in full.

The short names are written out before anything else reads a configuration. So saved policies and checkpoints stay
readable if a later release has other short names, and actors of the former release know the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from common.plugins.shipped import SHORT_NAMES

PLACES: Final = (
    "env",
    "env.wrappers.*",
    "env.wrappers.*.params.device",
    "agent",
    "agent.params.network",
    "agent.params.frozen_encoders.*",
    "overrides.*.agent.network",
    "overrides.*.agent.frozen_encoders.*",
    "step_processor",
    "evaluator",
    "replay",
    "replay.view",
    "recorders.*",
    "callbacks.*",
)
"""The sections of a configuration whose ``target`` names a part; ``*`` is each entry of a list or a mapping."""


def write_out(values: Any) -> Any:
    """The plain values of a configuration, with each short name in ``PLACES`` written as ``module:attr``.

    Names that are not short names stay as they are, and so do values of other kinds than plain ones.
    """
    for place in PLACES:
        values = _write_out_at(values, place.split("."))
    return values


def _write_out_at(value: Any, path: Sequence[str]) -> Any:
    if not path:
        target = value.get("target") if isinstance(value, Mapping) else None
        short = target if isinstance(target, str) else ""
        return {**value, "target": SHORT_NAMES[short]} if short in SHORT_NAMES else value
    key, *rest = path
    if isinstance(value, Mapping):
        keys = value.keys() if key == "*" else value.keys() & {key}
        return {**value, **{each: _write_out_at(value[each], rest) for each in keys}} if keys else value
    if isinstance(value, list | tuple) and key == "*":
        return [_write_out_at(each, rest) for each in value]
    return value
