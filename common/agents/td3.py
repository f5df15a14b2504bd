"""TD3: twin delayed deep deterministic policy gradient (arXiv:1802.09477)."""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt

from common.agents.actor_critic import ActorCritic, ActorCriticConfig
from common.agents.losses import least_value, policy_loss, smoothed
from common.agents.training import descend, track
from common.data import Record
from common.interfaces import EnvSpec

Noise = Annotated[float, Field(ge=0)]


class TD3Config(ActorCriticConfig):
    """``agent.params`` of ``common.agents.td3:TD3``; actions, and so noise, are in [-1, 1]."""

    exploration_noise: Noise = Field(0.1, description="Standard deviation of the noise on actions that explore.")
    target_noise: Noise = Field(0.2, description="Standard deviation of the noise on the target policy's actions.")
    target_noise_clip: Noise = Field(0.5, description="The target policy's noise is clipped to this.")
    policy_delay: PositiveInt = Field(2, description="Updates of the critics for one of the actor and the targets.")


class TD3(ActorCritic):
    """A deterministic policy, tanh of the actor's outputs.

    Args:
        spec: ``gymnasium.spaces.Box`` observations and actions of any shape, actions with finite bounds.
        seed: of the initial weights and of all noise.
        epsilon: not used; actors differ by the seed of their noise, not by its size.
        device: where the networks live.
        params: see ``TD3Config``.

    Raises:
        ConfigError: the observation space is no Box, or the action space no Box of floats with finite bounds.
    """

    Config = TD3Config
    config: TD3Config

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        epsilon: float = 0.0,  # noqa: ARG002 - every agent is given one
        device: str = "cpu",
        **params: Any,
    ) -> None:
        super().__init__(spec, TD3Config(**params), seed=seed, device=device, outputs=1)
        self.actor_tgt = deepcopy(self.actor)
        self._nets["actor_tgt"] = self.actor_tgt
        self._n_updates = 0

    def _explore(self, obs: torch.Tensor) -> torch.Tensor:
        action: torch.Tensor = self.actor(obs).tanh()
        return (action + self._noise(action) * self.config.exploration_noise).clamp(-1, 1)

    def _next_value(self, next_obs: torch.Tensor) -> torch.Tensor:
        action = self.actor_tgt(next_obs).tanh()
        noise = self._noise(action) * self.config.target_noise
        return least_value(self.critics_tgt(next_obs, smoothed(action, noise, self.config.target_noise_clip)))

    def _improve_actor(self, obs: torch.Tensor) -> Record:
        self._n_updates += 1
        if self._n_updates % self.config.policy_delay:
            return {}
        loss = policy_loss(self.critics(obs, self.actor(obs).tanh()))
        descend(loss, self._actor_optimizer, self.config.max_grad_norm)
        for target, online in ((self.critics_tgt, self.critics), (self.actor_tgt, self.actor)):
            track(target, online, self.config.tau)
        return {"loss_actor": loss.detach()}
