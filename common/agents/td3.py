"""TD3: twin delayed deep deterministic policy gradient (arXiv:1802.09477)."""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import nn

from common.agents.bootstrapping import Bootstrapping, BootstrappingConfig
from common.agents.losses.values import smooth_action
from common.agents.machinery.gradient_step import Batch, descend, track
from common.agents.machinery.update import Results
from common.agents.networks.layers import Observed
from common.agents.noise import ActionNoise, LaneNoise, WhiteNoise
from common.interfaces import EnvSpec

Noise = Annotated[float, Field(ge=0)]


class TD3Config(BootstrappingConfig):
    """``agent.params`` of ``TD3``; actions, and so noise, are in [-1, 1]."""

    exploration_noise: ActionNoise = Field(
        WhiteNoise(std=0.1),
        description="The noise that actors add to actions, by kind: gaussian, ou, pink or repeated. A single number "
        "is the standard deviation of gaussian noise.",
    )
    target_noise: Noise = Field(0.2, description="The standard deviation of the noise on the target policy's actions.")
    target_noise_clip: Noise = Field(
        0.5, description="The limit to which the noise on the target policy's actions is clipped."
    )
    policy_delay: PositiveInt = Field(
        2, description="The number of updates of the critics for each update of the actor and the targets."
    )

    @model_validator(mode="after")
    def _clips_noise(self) -> TD3Config:
        if not self.target_noise:
            self.refuse_beside("target_noise: 0", "target_noise_clip", reason="there is no noise to clip")
        return self


class TD3(Bootstrapping):
    """A deterministic policy, tanh of the actor's outputs; actions that explore have noise.

    Arguments and errors are those of ``ActorCritic``; params: see ``TD3Config``.
    """

    Config = TD3Config
    config: TD3Config
    _action_noise: LaneNoise

    def __init__(self, spec: EnvSpec, **given: Any) -> None:
        super().__init__(spec, **given)
        self.actor_tgt = self.actor
        if self.config.targets:
            self.actor_tgt = self.nets["actor_tgt"] = deepcopy(self.actor)
        size = self.action_scale.size
        self._action_noise = LaneNoise(self.config.exploration_noise, size, self._generator, self.device)

    def _make_actor(self, n_dims: int) -> nn.Module:
        return self._make_network(self._actor_leaves, n_dims)

    def _explore(self, obs: Observed, noise: torch.Tensor | None = None) -> torch.Tensor:
        action: torch.Tensor = self.actor(obs).tanh()
        return (action + (self._action_noise.draw(len(action)) if noise is None else noise)).clamp(-1, 1)

    def _next_action(self, next_obs: Observed) -> tuple[torch.Tensor, torch.Tensor | None]:
        action = self.actor_tgt(next_obs).tanh()
        noise = self._noise(action) * self.config.target_noise
        return smooth_action(action, noise, self.config.target_noise_clip), None

    def _improve_actor(self, batch: Batch) -> Results:
        obs = self._seen_by_actor(batch)
        action = self.actor(obs).tanh()
        q = self._values_to_follow(obs, action)
        loss = self._imitate(-q[0].mean(), q, action, batch)  # By the first critic, as in the paper.
        descend(loss, self._actor_optimizer, self.config.max_grad_norm)
        if self.config.targets:
            for target, online in ((self.critics_tgt, self.critics), (self.actor_tgt, self.actor)):
                track(target, online, self.config.tau)
        return {"loss_actor": loss.detach()}
