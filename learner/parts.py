"""What the learner builds from people's own parts."""

from __future__ import annotations

from dataclasses import dataclass

from common.config import RunConfig
from common.data import MAX_EPISODES, Schema
from common.envs import Env, build_env, spec_of
from common.errors import ConfigError, PluginError
from common.interfaces import Agent, StepProcessor

ENVELOPE_BYTES = 1024 + 12 * MAX_EPISODES
"""What a batch's message holds beside its items, at most."""


@dataclass(frozen=True)
class Parts:
    """An environment to evaluate on, the agent that learns, and what items look like."""

    env: Env
    agent: Agent
    schema: Schema


def build_parts(config: RunConfig, epsilon: float = 0.0) -> Parts:
    """Build everything that the configuration names; ``epsilon`` is the agent's, where it acts itself.

    Raises:
        CrossborderError: a part cannot be built or does not fit.
    """
    env = build_env(config.env)
    spec = spec_of(env)
    agent = config.agent.build(spec=spec, seed=config.seed, epsilon=epsilon, device=config.trainer.device)
    if not isinstance(agent, Agent):
        raise PluginError(f"agent.target: expected a common.interfaces.Agent, found {type(agent).__name__}")
    processor: StepProcessor = config.step_processor.build()
    schema = processor.schema(spec)
    _check_message_size(config, schema)
    return Parts(env, agent, schema)


def _check_message_size(config: RunConfig, schema: Schema) -> None:
    needed = config.push.n_buffer * schema.row_bytes + ENVELOPE_BYTES
    if needed > config.server.max_message_bytes:
        raise ConfigError(
            f"push.n_buffer: {config.push.n_buffer} items of {schema.row_bytes} bytes take messages of up to {needed} "
            f"bytes, above server.max_message_bytes ({config.server.max_message_bytes})"
        )
