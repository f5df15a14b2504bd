"""Losses that use only the values of actions in the batch, so they suit a dataset too. Shapes: B batch."""

from __future__ import annotations

import torch

from common.agents.losses.values import weighted_mean


def expectile_loss(error: torch.Tensor, tau: float, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of ``|tau - 1(u < 0)| u^2`` over errors ``[B]``, target minus prediction (IQL, arXiv:2110.06169, 5).

    With tau 0.5 it is half the squared error; towards 1 the prediction rises to the greatest target. ``weight`` ``[B]``
    multiplies the loss of each item, if it is given.
    """
    return weighted_mean(torch.where(error < 0, 1 - tau, tau) * error.square(), weight)


def exp_weight(advantage: torch.Tensor, inv_lambda: float, most: float) -> torch.Tensor:
    """``min(exp(A / lambda), most)``, ``[B]`` to ``[B]`` (AWAC, arXiv:2006.09359, 13; IQL, arXiv:2110.06169, 7).

    The bound comes from the code of IQL's authors.
    """
    return (inv_lambda * advantage).exp().clamp(max=most)


def softmax_weight(advantage: torch.Tensor, inv_lambda: float) -> torch.Tensor:
    """``exp(A / lambda)`` over its mean in the batch, ``[B]`` to ``[B]``, as AWAC's authors' code normalises it."""
    return len(advantage) * (inv_lambda * advantage).softmax(dim=0)
