"""Builds the parts that a configuration names, in the same way for learner, actor and saved policy."""

from __future__ import annotations

from dataclasses import dataclass

from common.config.discount import with_discount_of
from common.config.run_config import ActorConfig
from common.data import PRIORITY, Schema
from common.envs import Env, build_env, spec_of
from common.errors import PluginError
from common.interfaces import Agent, StepProcessor
from common.plugins.part_config import AgentArguments


@dataclass(frozen=True)
class Lane:
    """An environment, and the step processor that sees only the steps of this environment."""

    env: Env
    processor: StepProcessor


@dataclass(frozen=True)
class Parts:
    """Environments with their step processors, one agent for all of them, and the schema of the items."""

    lanes: tuple[Lane, ...]
    agent: Agent
    schema: Schema

    @property
    def env(self) -> Env:
        """The first environment, which is the only one except in an actor with several."""
        return self.lanes[0].env

    def close(self) -> None:
        """Close all environments."""
        for lane in self.lanes:
            lane.env.close()


def build_parts(config: ActorConfig, *, seed: int, epsilon: float = 0.0, device: str = "cpu", n_envs: int = 1) -> Parts:
    """Build everything that the configuration names.

    Args:
        config: names the parts.
        seed: of the agent.
        epsilon: the agent's epsilon on the exploration ladder; 0 where the agent does not explore.
        device: where the agent computes.
        n_envs: environments to build; an actor steps ``config.envs_per_actor``, a learner evaluates on one.

    Raises:
        CrossborderError: a part cannot be built or does not fit the others.
    """
    processor = with_discount_of(config.agent, config.step_processor)
    lanes = tuple(Lane(build_env(config.env), processor.build()) for _ in range(n_envs))
    spec = spec_of(lanes[0].env)
    agent = config.agent.build(**AgentArguments(spec=spec, seed=seed, epsilon=epsilon, device=device))
    if not isinstance(agent, Agent):
        raise PluginError(f"agent.target: expected a common.interfaces.Agent, found {type(agent).__name__}")
    schema = lanes[0].processor.schema(spec)
    if config.push.initial_priorities:
        if type(agent).td_error is Agent.td_error:
            raise PluginError(f"push.initial_priorities: {config.agent.target} has no td_error(items)")
        schema = schema.plus(PRIORITY)
    return Parts(lanes, agent, schema)
