"""Advantages of actions from the steps that followed them. Shapes: B batch, L steps."""

from __future__ import annotations

import torch


@torch.no_grad()
def generalized_advantages(
    reward: torch.Tensor,  # [B, L]
    discount: torch.Tensor,  # [B, L], gamma; 0 where the episode terminated
    value: torch.Tensor,  # [B, L], V(x)
    next_value: torch.Tensor,  # [B, L], V of the observation after each step
    *,
    goes_on: torch.Tensor,  # [B, L] bool: the next step is of the same episode; the last step is False
    gae_lambda: float,
) -> torch.Tensor:
    """The generalised advantages ``[B, L]`` (arXiv:1506.02438, equation 16).

    ``A_t = delta_t + gamma lambda A_(t+1)`` with ``delta_t = r_t + gamma V(x_(t+1)) - V(x_t)``. Steps after which the
    episode does not go on have no A beyond them. ``V(x_t) + A_t`` is the target for the value of x_t.
    """
    error = reward + discount * next_value - value
    return sum_backwards(error, discount * gae_lambda, goes_on)


def sum_backwards(each: torch.Tensor, weight: torch.Tensor, goes_on: torch.Tensor) -> torch.Tensor:
    """``s_t = each_t + weight_t s_(t+1)`` for all of L steps; ``s_t = each_t`` where the episode does not go on.

    All are ``[B, L]``, and ``goes_on`` is False at the last step. What stands beyond an end, even NaN, has no effect.
    """
    terms, weights, follows = each.unbind(dim=1), weight.unbind(dim=1), goes_on.unbind(dim=1)
    total = torch.zeros_like(terms[-1])
    sums: list[torch.Tensor] = []
    for t in range(len(terms) - 1, -1, -1):
        total = terms[t] + torch.where(follows[t], weights[t] * total, 0.0)
        sums.append(total)
    return torch.stack(sums[::-1], dim=1)
