"""Targets, losses and priorities of sequences. Shapes: B sequences, L steps of each."""

from __future__ import annotations

from typing import Final

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
