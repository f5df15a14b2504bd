"""Building people's own parts, the same way for learner, actor and saved policy."""

from __future__ import annotations

from dataclasses import dataclass

from common.config import ActorConfig
from common.data import PRIORITY, Schema
from common.envs import Env, build_env, spec_of
from common.errors import PluginError
from common.interfaces import Agent, StepProcessor


@dataclass(frozen=True)
class Parts:
    """An environment, an agent for it, a step processor, and what its items look like."""

    env: Env
    agent: Agent
    processor: StepProcessor
    schema: Schema


def build_parts(config: ActorConfig, *, seed: int, epsilon: float = 0.0, device: str = "cpu") -> Parts:
    """Build everything that the configuration names.

    Args:
        config: names the parts.
        seed: of the agent.
        epsilon: the agent's rung of the exploration ladder; 0 where it does not act.
        device: where the agent computes.

    Raises:
        CrossborderError: a part cannot be built or does not fit.
    """
    env = build_env(config.env)
    spec = spec_of(env)
    agent = config.agent.build(spec=spec, seed=seed, epsilon=epsilon, device=device)
    if not isinstance(agent, Agent):
        raise PluginError(f"agent.target: expected a common.interfaces.Agent, found {type(agent).__name__}")
    processor: StepProcessor = config.step_processor.build()
    schema = processor.schema(spec)
    if config.push.initial_priorities:
        if type(agent).td_error is Agent.td_error:
            raise PluginError(f"push.initial_priorities: {config.agent.target} has no td_error(items)")
        schema = schema.plus(PRIORITY)
    return Parts(env, agent, processor, schema)
