"""The discount factor gamma is configured once, as the agent's ``discount_factor``; views take it from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from common.plugins import part_loading
from common.plugins.part_config import PluginConfig
from common.settings import Settings, validate

NAME = "discount_factor"


def discount_of(agent: PluginConfig) -> float | None:
    """The discount factor that an agent is built with; None if the agent has no parameter ``discount_factor``.

    Raises:
        ConfigError, PluginError: the agent cannot be loaded or does not take its parameters.
    """
    target = part_loading.load_part(agent.target)
    model = getattr(target, "Config", None)
    if isinstance(model, type) and issubclass(model, Settings):
        found = getattr(validate(model, agent.params, "agent.params"), NAME, None)
    else:
        found = agent.params.get(NAME, _default_discount(target))
    return found if isinstance(found, float | int) else None


def _default_discount(target: Callable[..., Any]) -> object:
    """The default of a callable's parameter ``discount_factor``; None if there is no such parameter."""
    try:
        parameter = inspect.signature(target).parameters.get(NAME)
    except ValueError:  # Some builtins have no signature.
        return None
    return parameter.default if parameter else None
