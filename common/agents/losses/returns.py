"""Chooses from the distributions of several critics those that make a target.

Shapes: N critics, B batch, K atoms or quantiles.
"""

from __future__ import annotations

import torch


def least_distribution(
    probability: torch.Tensor,  # [N, B, K]
    atoms: torch.Tensor,  # [K]
) -> torch.Tensor:
    """For each item the distribution of the critic whose mean is least, ``[B, K]``.

    It is clipped double Q-learning (arXiv:1802.09477) of distributions, as in FastTD3's authors' code
    (arXiv:2505.22642).
    """
    least = (probability * atoms).sum(dim=2).argmin(dim=0)  # [B]
    return probability.take_along_dim(least[None, :, None], dim=0).squeeze(0)


def least_quantiles(
    quantiles: torch.Tensor,  # [N, B, K]
    n_dropped: int,
) -> torch.Tensor:
    """All critics' quantiles in one mixture, without its ``N * n_dropped`` greatest ones, ``[N * (K - n_dropped), B]``.

    They come in no particular order. This is how TQC keeps values from being overestimated (arXiv:2005.04269, 11).
    """
    n_critics, _, n_quantiles = quantiles.shape
    mixture = quantiles.transpose(0, 1).flatten(1)  # [B, N * K]
    n_kept = n_critics * (n_quantiles - n_dropped)
    return mixture.topk(n_kept, largest=False, sorted=False).values.T
