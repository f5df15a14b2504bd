"""Targets, advantages (GAE, V-trace), losses and priorities of sequences. Shapes: B sequences, L steps of each."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch.nn import functional

from common.agents.averaging import average

RESCALING_EPS: Final = 1e-3
"""The slope that value rescaling keeps for large values, so that it can be reversed."""


def rescale(value: torch.Tensor) -> torch.Tensor:
    """``h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x``, any shape (Pohlen et al., arXiv:1805.11593, 3.2).

    Large values become small and keep their order, so a network can learn returns of any size without clipped rewards.
    """
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + RESCALING_EPS * value


def undo_rescaling(value: torch.Tensor) -> torch.Tensor:
    """``h^-1(x) = sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)``, any shape (arXiv:1805.11593, A).

    With ``y = |x| + 1 + eps`` the fraction is ``2 y / (sqrt(1 + 4 eps y) + 1)``, which loses no digits.
    """
    y = value.abs() + 1 + RESCALING_EPS
    root = 2 * y / ((1 + 4 * RESCALING_EPS * y).sqrt() + 1)
    return value.sign() * (root.square() - 1)


def n_step_target(
    reward: torch.Tensor,  # [B, L]
    terminated: torch.Tensor,  # [B, L] bool
    mask: torch.Tensor,  # [B, L] bool: a step is there
    next_value: torch.Tensor,  # [B, L]: of the observation after each step
    *,
    discount: float,
    n: int,
) -> torch.Tensor:
    """``r_t + g r_t+1 + … + g^(k-1) r_t+k-1 + g^k V(s_t+k)``, ``[B, L]``, with g the discount.

    k is n, or the number of steps that are left until the sequence or the episode ends. If the episode terminates, the
    value after it is left out; if it is cut off, the value counts.
    """
    bootstrap = discount * (~terminated).to(reward.dtype)
    goes_on = functional.pad(mask[:, 1:], (0, 1))  # False at the last step.
    target = one_step = reward + bootstrap * next_value
    for _ in range(n - 1):
        target = torch.where(goes_on, reward + bootstrap * target.roll(-1, dims=1), one_step)
    return target


def masked_mean(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The mean of those of the values ``[B, L]`` that count, by ``counts``, bool ``[B, L]``; 0 if none counts.

    Values that do not count may be anything, even NaN.
    """
    return torch.where(counts, values, 0.0).sum() / counts.sum().clamp(min=1)


def masked_loss(
    values: torch.Tensor,  # [B, L]
    counts: torch.Tensor,  # [B, L] bool
    weight: torch.Tensor | None = None,  # [B]
) -> torch.Tensor:
    """As ``masked_mean``, for a loss: its mean over the ranks is the mean over the counting steps of all ranks.

    The sum of this rank is divided by the mean number of counting steps per rank, since the numbers of the ranks may
    differ. Prioritised sampling gives each sequence a weight, by which its values are multiplied (arXiv:1511.05952,
    3.4).
    """
    weighted = values if weight is None else values * weight[:, None]
    return torch.where(counts, weighted, 0.0).sum() / average(counts.sum()).clamp(min=1)


def sequence_priority(
    error: torch.Tensor,  # [B, L]
    counts: torch.Tensor,  # [B, L] bool
    max_share: float,
) -> torch.Tensor:
    """``eta max_t |error_t| + (1 - eta) mean_t |error_t|`` over the steps that count, ``[B]``; eta is ``max_share``.

    The mean over a long sequence hides the few large errors from which most can be learnt (R2D2, Kapturowski et al.
    2019, 2.3, with eta 0.9).
    """
    sizes = error.abs() * counts.to(error.dtype)
    mean = sizes.sum(dim=1) / counts.sum(dim=1).clamp(min=1)
    return max_share * sizes.amax(dim=1) + (1 - max_share) * mean


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
