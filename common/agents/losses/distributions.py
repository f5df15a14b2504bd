"""Targets and losses of distributions of returns. Shapes: B batch, N quantiles."""

from __future__ import annotations

import torch
from torch.nn import functional


def quantile_huber_loss(
    prediction: torch.Tensor,  # [N, B]
    target: torch.Tensor,  # [N', B]
    levels: torch.Tensor,  # [N, B], of the predicted quantiles, in [0, 1]
    kappa: float,
) -> torch.Tensor:
    """Loss of each item, ``[B]``: sum over predictions of the mean over targets (arXiv:1806.06923, 3).

    ``|level - 1[error < 0]| * huber(error) / kappa`` of ``error = target - prediction``, of every pair.
    """
    error = target[:, None] - prediction  # [N', N, B]
    huber = functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
    weight = (levels - (error < 0).to(levels.dtype)).abs()
    return (weight * huber / kappa).mean(dim=0).sum(dim=0)
