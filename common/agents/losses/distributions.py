"""Targets and losses of distributions of returns. Shapes: B batch, N quantiles, K atoms."""

from __future__ import annotations

import torch


def project(
    probability: torch.Tensor,  # [..., B, K]
    target_atoms: torch.Tensor,  # [..., B, K], or a shape that broadcasts to it
    atoms: torch.Tensor,  # [K], evenly spaced and increasing
) -> torch.Tensor:
    """Project a distribution over other values onto ``atoms``, ``[..., B, K]`` (arXiv:1707.06887, 7).

    ``P_i = sum_j p_j * (1 - |clip(t_j) - z_i| / dz)``, where no summand is below 0: each probability ``p_j`` is shared
    by the two atoms ``z_i`` beside its value ``t_j``; the nearer atom gets more. Values beyond the first and the last
    atom are clipped to these atoms.
    """
    n_atoms = len(atoms)
    position = ((target_atoms - atoms[0]) / (atoms[1] - atoms[0])).clamp(0, n_atoms - 1)  # In atoms, from the first.
    position = position.contiguous()  # Targets come transposed, which would slow the next operations down.
    below = position.floor()
    to_above = probability * (position - below)
    index = below.long().expand_as(probability)
    projected = torch.zeros_like(probability).scatter_add(-1, index, probability - to_above)
    return projected.scatter_add(-1, (index + 1).clamp(max=n_atoms - 1), to_above)


def categorical_loss(
    log_probability: torch.Tensor,  # [..., B, K], of the predicted distribution
    target: torch.Tensor,  # [..., B, K], probabilities
) -> torch.Tensor:
    """Cross-entropy of each item, ``[..., B]``: ``-sum_i P_i log p_i`` (arXiv:1707.06887, algorithm 1)."""
    return -(target * log_probability).sum(dim=-1)


def quantile_huber_loss(
    prediction: torch.Tensor,  # [N, B]
    target: torch.Tensor,  # [N', B]
    levels: torch.Tensor,  # [N, B] or [N, 1], of the predicted quantiles, in [0, 1]
    kappa: float,
) -> torch.Tensor:
    """Loss of each item, ``[B]``: sum over predictions of the mean over targets (arXiv:1806.06923, 3).

    ``|level - 1[error < 0]| * huber(error) / kappa`` of ``error = target - prediction``, of every pair. The gradient of
    the prediction is computed here, in few passes over the pairs; autograd would take three to five times as long.
    """
    scale = kappa * len(target)
    with torch.no_grad():
        error = target[:, None] - prediction  # [N', N, B]
        clipped = error.clamp(-kappa, kappa)  # The derivative of huber(error) = clipped * (error - clipped / 2).
        weighted = clipped.abs().mul_(levels - 0.5).add_(clipped, alpha=0.5)  # |level - 1[error < 0]| * clipped
        gradient = weighted.sum(dim=0) / -scale  # [N, B]
        value = error.sub_(clipped, alpha=0.5).mul_(weighted).sum(dim=(0, 1)) / scale
    return value + (gradient * (prediction - prediction.detach())).sum(dim=0)
