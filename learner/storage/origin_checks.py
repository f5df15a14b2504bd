"""Whether a new run fits the run that it begins from: its spaces, its agent and the agent's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from common.config.run_config import RunConfig
from common.data import Column, Schema
from common.errors import CheckpointError, ConfigError, RunDirectoryError
from common.plugins.part_config import PluginConfig
from common.plugins.part_loading import MOVED, load_part
from common.settings import Settings, validate
from learner.replay.layout import Layout

RANDOM_START: Final = "random_opts"
"""The parameter of agents that act at random until they have taken this many opt steps."""


def require_same_spaces(run: Path, schema: Schema) -> None:
    """Check that the rows of an earlier run have the observations and actions of this one.

    Nothing is checked if the earlier run has no replay of this release, or has self-contained items.

    Args:
        run: the directory of the earlier run.
        schema: of the rows of this run.

    Raises:
        CheckpointError: a column or the bounds of an action differ; the message names both spaces.
    """
    with suppress(RunDirectoryError):
        before = Layout.read(run / "shared" / "replay").schema
        if not (before.is_rows and schema.is_rows):
            return
        for space in ("obs", "action"):
            theirs, ours = before.named(space), schema.named(space)
            if theirs != ours or (space == "action" and _bounds(theirs) != _bounds(ours)):
                raise CheckpointError(
                    f"{run}: expected the spaces of this run's environment, {_describe(ours)}, found "
                    f"{_describe(theirs)}"
                )


def find_differences(before: Mapping[str, Any], agent: PluginConfig) -> list[str]:
    """The settings in which two agents differ, each with both values, defaults included.

    Args:
        before: the section ``agent`` of the earlier run; empty if it is not known.
        agent: the agent of this run.
    """
    target = MOVED.get(before.get("target", ""), before.get("target", agent.target))
    if target != agent.target:
        return [f"agent.target: {target} there, {agent.target} here"]
    if not before:
        return []
    theirs, ours = (_fill_in(agent.target, params) for params in (before.get("params", {}), agent.params))
    return [
        f"agent.params.{key}: {_show(theirs, key)} there, {_show(ours, key)} here"
        for key in {**ours, **theirs}
        if theirs.get(key) != ours.get(key) and key != RANDOM_START
    ]


def act_by_policy(config: RunConfig) -> RunConfig:
    """The configuration of a run that begins with a trained agent: no random actions at the start.

    If the configuration itself sets the number of opt steps with random actions, that number stays.
    """
    model = _settings_of(config.agent.target)
    if model is None or RANDOM_START not in model.model_fields or RANDOM_START in config.agent.params:
        return config
    agent = config.agent.model_copy(update={"params": {**config.agent.params, RANDOM_START: 0}})
    return config.model_copy(update={"agent": agent})


def _fill_in(target: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a part with its defaults, as values for JSON; without defaults if these are not known."""
    with suppress(ConfigError):
        if (model := _settings_of(target)) is not None:
            return validate(model, params).model_dump(mode="json")
    plain: dict[str, Any] = json.loads(json.dumps(params))  # A tuple in one of two files is a list in the other.
    return plain


def _settings_of(target: str) -> type[Settings] | None:
    """The class that describes an agent's parameters; None if the agent has none."""
    model = getattr(load_part(target), "Config", None)
    return model if isinstance(model, type) and issubclass(model, Settings) else None


def _show(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "nothing"


def _bounds(columns: tuple[Column, ...]) -> list[object]:
    return [column.domain and column.domain.to_json() for column in columns]


def _describe(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column} ({column.domain})" if column.domain else str(column) for column in columns)
