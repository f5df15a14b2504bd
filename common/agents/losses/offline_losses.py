"""Losses and weights that keep to a dataset. Shapes: B batch, A dimensions of an action, K actions, N critics."""

from __future__ import annotations

import torch
from torch.nn import functional

from common.agents.losses.values import weighted_mean


def imitation_loss(
    value: torch.Tensor,  # [B], of the policy's actions
    action: torch.Tensor,  # [B, A], of the policy
    taken: torch.Tensor,  # [B, A], of the data
) -> torch.Tensor:
    """``mean|Q| * mean((pi(s) - a)^2)``, without a gradient through ``mean|Q|`` (TD3+BC, arXiv:2106.06860, section 5).

    The paper divides the other part of the policy's loss, the values, by ``mean|Q|`` instead; the balance is the same.
    """
    return value.detach().abs().mean() * functional.mse_loss(action, taken)


def mean_squared_distance(action: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The mean over dimensions of the squared differences of actions, two ``[B, A]`` to ``[B]``."""
    return (action - other).square().mean(dim=1)


def conservative_loss(
    others: torch.Tensor,  # [N, K, B], of sampled actions, less the logarithms of their probability densities
    q: torch.Tensor,  # [N, B], of the batch's actions
    weight: torch.Tensor | None = None,  # [B]
) -> torch.Tensor:
    """``mean(log sum_k exp(others) - q)``: conservative Q-learning, CQL(H) (arXiv:2006.04779, 4 and appendix F).

    Its descent lowers the values of all actions where they are high, and raises those of the batch.
    """
    return weighted_mean(others.logsumexp(dim=1) - q, weight)


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
