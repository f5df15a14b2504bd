"""The discount factor gamma is configured once, as the agent's ``discount_factor``; ``NStep`` takes it from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from common.errors import ConfigError
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


def with_discount_of(agent: PluginConfig, processor: PluginConfig, agent_at: str = "agent.params") -> PluginConfig:
    """The step processor's configuration. An ``NStep`` gets the agent's discount factor; others are unchanged.

    Args:
        agent: the configuration of the agent.
        processor: the configuration of the step processor.
        agent_at: the place of the agent's parameters in the configuration, for the message.

    Raises:
        ConfigError: the step processor's own discount factor differs from the agent's.
        PluginError: a part cannot be loaded.
    """
    from common.processors import NStep  # noqa: PLC0415 - ingest reads configurations, and must not import gymnasium

    target = part_loading.load_part(processor.target)
    wanted = discount_of(agent) if isinstance(target, type) and issubclass(target, NStep) else None
    if wanted is None:
        return processor
    found = processor.params.get(NAME, wanted)
    if found != wanted:
        raise ConfigError(
            f"step_processor.params.{NAME}: expected {wanted:g}, the value of {agent_at}.{NAME}, found {found}; "
            f"remove it from step_processor.params, since NStep takes the agent's, or change {agent_at}.{NAME}"
        )
    return processor.model_copy(update={"params": {**processor.params, NAME: wanted}})
