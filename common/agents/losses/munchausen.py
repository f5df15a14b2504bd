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
        """The term added to each reward: ``alpha * clip(temperature * log pi(a|s), least, 0)`` (2 and 3), ``[B]``.

        Args:
            q: values of the target network at the observations, ``[B, A]``.
            action: the actions that were taken, ``[B]`` int64.
        """
        chosen = scaled_log_policy(q, self.temperature).gather(1, action[:, None]).squeeze(1)
        return self.alpha * chosen.clamp(self.least, 0)

    def value(self, values: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """``sum_a pi(a|s') * (values(s', a) - temperature * log pi(a|s'))``, ``[B]`` or ``[N, B]`` (equation 1).

        Args:
            values: of the next observations, ``[B, A]`` or ``[N, B, A]``.
            q: their means, which make the policy, ``[B, A]``.
        """
        log_policy = scaled_log_policy(q, self.temperature)
        return ((log_policy / self.temperature).exp() * (values - log_policy)).sum(dim=-1)
