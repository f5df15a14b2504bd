"""Losses and targets as pure functions. Shapes: B batch, A actions."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

CriticLoss = Literal["smooth_l1", "mse"]


def td_target(
    reward: torch.Tensor,  # [B]
    terminated: torch.Tensor,  # [B] bool
    next_value: torch.Tensor,  # [B]
    discount: float | torch.Tensor,  # or [B]
) -> torch.Tensor:
    """Target ``r + discount * V(s')``, without bootstrap only where the episode *terminated*.

    With one discount for all it is the one-step target; rewards folded over k steps come with gamma^k of their own
    (``common.processors.NStep``). A truncated episode is cut off from outside and bootstraps (Pardo et al.,
    arXiv:1712.00378).
    """
    return reward + discount * next_value * (~terminated).to(reward.dtype)  # [B]


def greedy_value(q_target: torch.Tensor) -> torch.Tensor:
    """``max_a Q_target(s', a)``, ``[B, A]`` to ``[B]`` (DQN, Mnih et al. 2015)."""
    return q_target.amax(dim=1)


def double_q_value(q_online: torch.Tensor, q_target: torch.Tensor) -> torch.Tensor:
    """``Q_target(s', argmax_a Q_online(s', a))``, two ``[B, A]`` to ``[B]`` (Double DQN, arXiv:1509.06461)."""
    return q_target.gather(1, q_online.argmax(dim=1, keepdim=True)).squeeze(1)


def critic_loss(kind: CriticLoss, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean loss over ``[B]``: Huber with delta 1, or the squared error (not halved, as torch and border have it)."""
    loss = functional.smooth_l1_loss if kind == "smooth_l1" else functional.mse_loss
    return loss(prediction, target)
