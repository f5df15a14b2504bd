"""Munchausen reinforcement learning (arXiv:2007.14430), an extension of DQN and IQN. Shapes: B batch, A actions.

The policy is ``softmax(q / temperature)`` of action values ``q``; all its log-probabilities are multiplied by the
temperature, as the paper has them.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveFloat

from common.config.replay_config import Unit
from common.settings import Settings


def scaled_log_policy(q: torch.Tensor, temperature: float) -> torch.Tensor:
    """``temperature * log softmax(q / temperature)``, ``[B, A]`` to ``[B, A]`` (appendix B.1, where it is stable)."""
    return temperature * (q / temperature).log_softmax(dim=-1)


def munchausen_bonus(
    q: torch.Tensor,  # [B, A], of the target network at the observation
    action: torch.Tensor,  # [B] int64
    *,
    alpha: float,
    temperature: float,
    least: float,
) -> torch.Tensor:
    """The term added to each reward, ``[B]``: ``alpha * clip(temperature * log pi(a|s), least, 0)`` (2 and 3)."""
    chosen = scaled_log_policy(q, temperature).gather(1, action[:, None]).squeeze(1)
    return alpha * chosen.clamp(least, 0)


def munchausen_value(
    values: torch.Tensor,  # [B, A] or [N, B, A], of the next observation
    q: torch.Tensor,  # [B, A], their means, which make the policy
    temperature: float,
) -> torch.Tensor:
    """``sum_a pi(a|s') * (values(s', a) - temperature * log pi(a|s'))``, ``[B]`` or ``[N, B]`` (equation 1)."""
    log_policy = scaled_log_policy(q, temperature)
    return ((log_policy / temperature).exp() * (values - log_policy)).sum(dim=-1)


class Munchausen(Settings):
    """Rewards with the log-probability of the action, and targets with the policy's entropy (arXiv:2007.14430)."""

    alpha: Unit = Field(
        0.9, description="The share of the log-probability of the action that is added to the reward; 0: soft DQN."
    )
    temperature: PositiveFloat = Field(
        0.03, description="The temperature of the policy, which is the softmax of action values."
    )
    least: Annotated[float, Field(lt=0)] = Field(
        -1.0, description="The lowest value of the log-probability times the temperature; lower ones are clipped to it."
    )

    def bonus(self, q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The term added to rewards, for the target network's values ``[B, A]`` and actions ``[B]``: ``[B]``."""
        return munchausen_bonus(q, action, alpha=self.alpha, temperature=self.temperature, least=self.least)

    def value(self, values: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The value of the next observations, see ``munchausen_value``: ``[B]`` or ``[N, B]``."""
        return munchausen_value(values, q, self.temperature)
