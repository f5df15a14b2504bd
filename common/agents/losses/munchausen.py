"""Munchausen reinforcement learning (arXiv:2007.14430): rewards with the log-probability of the action.

The policy is ``softmax(q / temperature)`` of action values ``q``. All log-probabilities here are multiplied by the
temperature, as the paper has them. Shapes: B batch, A actions, N quantiles.
"""

from __future__ import annotations

import torch


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


def soft_value(
    values: torch.Tensor,  # [B, A] or [N, B, A], of the next observation
    q: torch.Tensor,  # [B, A], their means, which make the policy
    temperature: float,
) -> torch.Tensor:
    """``sum_a pi(a|s') * (values(s', a) - temperature * log pi(a|s'))``, ``[B]`` or ``[N, B]`` (equation 1)."""
    log_policy = scaled_log_policy(q, temperature)
    return ((log_policy / temperature).exp() * (values - log_policy)).sum(dim=-1)
