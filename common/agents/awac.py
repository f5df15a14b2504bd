"""AWAC: advantage-weighted actor-critic (arXiv:2006.09359), offline, online, and from one into the other."""

from __future__ import annotations

import torch

from common.agents.advantage_weighted import AdvantageWeighted, AdvantageWeightedConfig
from common.agents.losses import least_value


class AWACConfig(AdvantageWeightedConfig):
    """``agent.params`` of ``common.agents.awac:AWAC``."""


class AWAC(AdvantageWeighted):
    """Critics value the policy's own next action; an action's advantage is over the policy's likeliest one.

    Arguments and errors are those of ``ActorCritic``; params: see ``AWACConfig``.
    """

    Config = AWACConfig
    config: AWACConfig

    def _next_value(self, next_obs: torch.Tensor) -> torch.Tensor:
        return least_value(self.critics_tgt(next_obs, self.actor.draw(next_obs, self._generator)))

    def _advantage(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        q, value = self.critics(obs, action), self.critics(obs, self.actor.greedy(obs))  # [N, B]
        return least_value(q) - least_value(value)
