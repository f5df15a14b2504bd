"""Uniformly random actions before learning begins, as the authors of TD3 and SAC take them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, NonNegativeInt

from common.agents.actor_critic import ActorCritic, ActorCriticConfig
from common.agents.network_agent import n_rows
from common.data import Array, Leaves, Model, Record
from common.interfaces import EnvSpec, ReplayBuffer


class RandomStartConfig(ActorCriticConfig):
    """The settings of agents that begin with random actions."""

    random_opts: NonNegativeInt = Field(
        1,
        description="The number of opt steps during which exploring actors take uniformly random actions. 1: until "
        "the learner begins to learn, after trainer.warmup_period steps; 0: never.",
    )


class RandomStart(ActorCritic):
    """Explores uniformly at random until the learner has taken ``random_opts`` opt steps, then by its policy.

    An untrained policy hardly moves, so that its steps would show the critics one small part of the action space.
    TD3's authors act at random for the first 1,000 or 10,000 environment steps (arXiv:1802.09477, section 6.1) and
    begin to learn after them (https://github.com/sfujim/TD3, main.py, ``start_timesteps``); SAC's authors do the same
    (https://github.com/rail-berkeley/softlearning, ``n_initial_exploration_steps``). Here the learner's opt steps are
    counted instead: each model brings their number, so an actor that joins late does as the others do. About
    ``trainer.warmup_period`` steps are random; so are the steps that actors take until a model with enough opt steps
    arrives.

    Arguments and errors are those of ``ActorCritic``.
    """

    config: RandomStartConfig
    counters: ClassVar[tuple[str, ...]] = ("_opt_steps",)

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self._opt_steps = 0

    def sample(self, obs: Leaves, lanes: Array | None = None) -> Array:
        if not self.is_train or self._opt_steps >= self.config.random_opts:
            return super().sample(obs, lanes)
        if lanes is None:
            shape = (n_rows(obs), self.action_scale.size)
            share = torch.rand(shape, generator=self._generator, device=self.device)
        else:
            share = torch.from_numpy(self._lane_random.of(lanes).random(self.action_scale.size)).to(self.device)
        actions: Array = self.action_scale.to_env(2 * share - 1).numpy(force=True)  # From [n, A], uniform in [-1, 1].
        return actions

    def opt(self, buffer: ReplayBuffer) -> Record | None:
        record = super().opt(buffer)
        self._opt_steps += record is not None
        return record

    def sync_model(self, model: Model) -> None:
        super().sync_model(model)
        self._opt_steps = model.version.opt_steps
