"""Losses and targets as pure functions. Shapes: B batch, A actions or their dimensions, N critics or quantiles.

The last four functions use only the values of actions in the batch, so they suit a dataset too.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch.nn import functional

CriticLoss = Literal["smooth_l1", "mse"]


def td_target(
    reward: torch.Tensor,  # [B]
    terminated: torch.Tensor,  # [B] bool
    next_value: torch.Tensor,  # [B] or [N, B]
    discount: float | torch.Tensor,  # or [B]
) -> torch.Tensor:
    """Target ``r + discount * V(s')``, without bootstrap only where the episode *terminated*.

    With one discount for all items it is the one-step target; a transition whose reward is a sum over k steps has a
    discount gamma^k of its own. A truncated episode is cut off from outside and bootstraps (Pardo
    et al., arXiv:1712.00378). The target has the shape of ``next_value``.
    """
    return reward + discount * next_value * (~terminated).to(reward.dtype)


def greedy_value(q_target: torch.Tensor) -> torch.Tensor:
    """``max_a Q_target(s', a)``, ``[B, A]`` to ``[B]`` (DQN, Mnih et al. 2015)."""
    return q_target.amax(dim=1)


def double_q_value(q_online: torch.Tensor, q_target: torch.Tensor) -> torch.Tensor:
    """``Q_target(s', argmax_a Q_online(s', a))``, two ``[B, A]`` to ``[B]`` (Double DQN, arXiv:1509.06461)."""
    return q_target.gather(1, q_online.argmax(dim=1, keepdim=True)).squeeze(1)


def weighted_mean(loss: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """The mean of losses ``[B]`` or ``[N, B]``, each multiplied by the weight ``[B]`` of its item if there are any.

    Prioritised sampling gives weights (arXiv:1511.05952, 3.4). They scale an item's loss and not its error, so no loss
    squares them.
    """
    return loss.mean() if weight is None else (weight * loss).mean()


def critic_loss(
    kind: CriticLoss,
    prediction: torch.Tensor,  # [B] or [N, B]
    target: torch.Tensor,  # the same
    weight: torch.Tensor | None = None,  # [B]
) -> torch.Tensor:
    """Mean loss over all values, weighted if there are weights.

    Huber with delta 1, or the squared error (not halved, as torch and border have it).
    """
    loss = functional.smooth_l1_loss if kind == "smooth_l1" else functional.mse_loss
    if weight is None:
        # The loss and its mean in one call: this saves 10 µs of the 500 of a small opt step.
        return loss(prediction, target)
    return weighted_mean(loss(prediction, target, reduction="none"), weight)


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


def least_value(q_target: torch.Tensor) -> torch.Tensor:
    """``min_i Q_i(s', a')``, ``[N, B]`` to ``[B]`` (clipped double Q-learning, arXiv:1802.09477)."""
    return q_target.amin(dim=0)


def smooth_action(action: torch.Tensor, noise: torch.Tensor, clip: float) -> torch.Tensor:
    """Target policy smoothing: clipped noise on actions, both ``[B, A]``, within ``[-1, 1]`` (arXiv:1802.09477)."""
    return (action + noise.clamp(-clip, clip)).clamp(-1, 1)


def policy_loss(q: torch.Tensor) -> torch.Tensor:
    """The deterministic policy's loss: minus the first critic's mean, ``[N, B]`` (arXiv:1802.09477)."""
    return -q[0].mean()


def squashed_gaussian(
    mean: torch.Tensor,  # [B, A]
    log_std: torch.Tensor,  # [B, A]
    noise: torch.Tensor,  # [B, A] standard normal
) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions ``tanh(mean + std * noise)`` ``[B, A]`` and their log-probabilities ``[B]`` (arXiv:1801.01290, C).

    ``log(1 - tanh(x)^2)`` is written as ``2 (log 2 - x - softplus(-2x))``, which stays finite where tanh is 1.
    """
    raw = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return raw.tanh(), (gaussian - squash).sum(dim=1)


def soft_value(
    q_target: torch.Tensor,  # [N, B]
    log_prob: torch.Tensor,  # [B]
    ent_coef: torch.Tensor,  # []
) -> torch.Tensor:
    """``min_i Q_i(s', a') - ent_coef * log pi(a'|s')``, ``[B]`` (arXiv:1812.05905, 3)."""
    return least_value(q_target) - ent_coef * log_prob


def soft_policy_loss(
    q: torch.Tensor,  # [N, B]
    log_prob: torch.Tensor,  # [B]
    ent_coef: torch.Tensor,  # []
) -> torch.Tensor:
    """Mean of ``ent_coef * log pi(a|s) - min_i Q_i(s, a)`` (arXiv:1812.05905, 7): minus the soft value."""
    return -soft_value(q, log_prob, ent_coef).mean()


def ent_coef_loss(log_ent_coef: torch.Tensor, log_prob: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """The loss whose descent raises the coefficient while the entropy is below its target (arXiv:1812.05905, 18).

    The entropy is the mean of ``-log_prob`` ``[B]``. The loss is linear in the logarithm of the coefficient, as in the
    authors' code, so its gradient does not fade as the coefficient gets small.
    """
    return -log_ent_coef * (log_prob + target_entropy).mean()


def expectile_loss(error: torch.Tensor, tau: float) -> torch.Tensor:
    """Mean of ``|tau - 1(u < 0)| u^2`` over errors ``[B]``, target minus prediction (IQL, arXiv:2110.06169, 5).

    With tau 0.5 it is half the squared error; towards 1 the prediction rises to the greatest target.
    """
    weight = torch.where(error < 0, 1 - tau, tau)
    return (weight * error.square()).mean()


def exp_weight(advantage: torch.Tensor, inv_lambda: float, most: float) -> torch.Tensor:
    """``min(exp(A / lambda), most)``, ``[B]`` to ``[B]`` (AWAC, arXiv:2006.09359, 13; IQL, arXiv:2110.06169, 7).

    The bound is that of IQL's authors' code.
    """
    return (inv_lambda * advantage).exp().clamp(max=most)


def softmax_weight(advantage: torch.Tensor, inv_lambda: float) -> torch.Tensor:
    """``exp(A / lambda)`` over its mean in the batch, ``[B]`` to ``[B]``, as AWAC's authors' code normalises it."""
    return len(advantage) * (inv_lambda * advantage).softmax(dim=0)


def weighted_imitation_loss(log_prob: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Minus the mean of weighted log-probabilities ``log pi(a|s)`` of the batch's actions, both ``[B]``."""
    return -(weight * log_prob).mean()
