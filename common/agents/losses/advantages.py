"""Advantages of actions from the steps that followed them: GAE, and V-trace where an older policy acted.

Shapes: B batch, L steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional


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


class VTrace(NamedTuple):
    """The targets of a batch of sequences."""

    values: torch.Tensor
    """The targets for the values of the first L observations, ``[B, L]``: v_s in the paper."""
    advantages: torch.Tensor
    """The advantages of the actions over the policy, ``[B, L]``, each times its clipped ratio."""


def vtrace(
    log_ratio: torch.Tensor,  # [B, L], log pi(a|x) - log mu(a|x): learner's policy over the policy that acted
    reward: torch.Tensor,  # [B, L]
    discount: torch.Tensor,  # [B, L], gamma; 0 where the episode terminated
    value: torch.Tensor,  # [B, L + 1], V(x), of the observation after the last step too
    mask: torch.Tensor,  # [B, L] bool, False where no step was taken
    *,
    rho_bar: float,
    c_bar: float,
) -> VTrace:
    """Targets of values and policy by V-trace (arXiv:1802.01561, equation 1 and section 4.2).

    ``v_s = V(x_s) + sum over t >= s of gamma^(t-s) (c_s … c_(t-1)) delta_t`` with
    ``delta_t = rho_t (r_t + gamma V(x_(t+1)) - V(x_t))``, ``rho_t = min(rho_bar, pi/mu)``, ``c_t = min(c_bar, pi/mu)``.
    The advantage of step s is ``rho_s (r_s + gamma v_(s+1) - V(x_s))``.

    Where an episode ends, ``mask`` is False at the observation after its last step, and no sum goes beyond it: v there
    is V. So a truncated episode bootstraps from its true last observation, and later steps of the same sequence belong
    to the next episode. A ``log_ratio`` of 0 everywhere gives n-step returns without correction. No gradient
    goes through the targets.
    """
    with torch.no_grad():
        ratio = log_ratio.exp()
        rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
        goes_on = mask & functional.pad(mask[:, 1:], (0, 1))
        error = reward + discount * value[:, 1:] - value[:, :-1]
        excess = sum_backwards(rho * error, discount * c, goes_on)
        target = value[:, :-1] + torch.where(mask, excess, 0.0)
        beyond = torch.where(goes_on, discount * functional.pad(excess[:, 1:], (0, 1)), 0.0)
        return VTrace(target, torch.where(mask, rho * (error + beyond), 0.0))


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
