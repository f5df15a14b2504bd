"""What the learner builds from people's own parts."""

from __future__ import annotations

from dataclasses import dataclass

from common.config import RunConfig
from common.data import Schema
from common.envs import Env, build_env, spec_of
from common.errors import PluginError
from common.interfaces import Agent, StepProcessor


@dataclass(frozen=True)
class Parts:
    """An environment to evaluate on, the agent that learns, and what items look like."""

    env: Env
    agent: Agent
    schema: Schema


def build_parts(config: RunConfig) -> Parts:
    """Build everything that the configuration names.

    Raises:
        CrossborderError: a part cannot be built or does not fit.
    """
    env = build_env(config.env)
    spec = spec_of(env)
    agent = config.agent.build(spec=spec, seed=config.seed, epsilon=0.0)
    if not isinstance(agent, Agent):
        raise PluginError(f"agent.target: expected a common.interfaces.Agent, found {type(agent).__name__}")
    processor: StepProcessor = config.step_processor.build()
    return Parts(env, agent, processor.schema(spec))
