"""Targets and losses of expected returns. Shapes: B batch, A actions or their dimensions, N critics or quantiles.

In Munchausen reinforcement learning (arXiv:2007.14430) the policy is ``softmax(q / temperature)`` of action values
``q``; all its log-probabilities are multiplied by the temperature, as the paper has them. The losses of IQL and AWAC
use only the values of actions in the batch, so they suit a dataset too.
"""

from __future__ import annotations

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
    """Target ``r + discount * V(s')``, or ``r`` alone if the episode *terminated*.

    With one discount for all items it is the one-step target; a transition whose reward is a sum over k steps has the
    discount gamma^k. A truncated episode is cut off from outside and bootstraps (Pardo et al., arXiv:1712.00378). The
    target has the shape of ``next_value``.
    """
    return torch.where(terminated, reward, reward + discount * next_value)


def greedy_value(q_target: torch.Tensor) -> torch.Tensor:
    """``max_a Q_target(s', a)``, ``[B, A]`` to ``[B]`` (DQN, Mnih et al. 2015)."""
    return q_target.amax(dim=1)


def double_q_value(q_online: torch.Tensor, q_target: torch.Tensor) -> torch.Tensor:
    """``Q_target(s', argmax_a Q_online(s', a))``, two ``[B, A]`` to ``[B]`` (Double DQN, arXiv:1509.06461)."""
    return q_target.gather(1, q_online.argmax(dim=1, keepdim=True)).squeeze(1)


def least_value(q_target: torch.Tensor) -> torch.Tensor:
    """``min_i Q_i(s', a')``, ``[N, B]`` to ``[B]`` (clipped double Q-learning, arXiv:1802.09477)."""
    return q_target.amin(dim=0)


def weighted_mean(loss: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """The mean of losses ``[B]`` or ``[N, B]``, each multiplied by the weight ``[B]`` of its item if there are any.

    Prioritised sampling gives weights (arXiv:1511.05952, 3.4). They scale an item's loss and not its error, so no loss
    squares them.
    """
    return loss.mean() if weight is None else (weight * loss).mean()


def critic_loss(
    kind: CriticLoss,
    prediction: torch.Tensor,  # [B] or [N, B]
    target: torch.Tensor,  # as prediction
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


def smooth_action(action: torch.Tensor, noise: torch.Tensor, clip: float) -> torch.Tensor:
    """Target policy smoothing: clipped noise on actions, both ``[B, A]``, within ``[-1, 1]`` (arXiv:1802.09477)."""
    return (action + noise.clamp(-clip, clip)).clamp(-1, 1)


def policy_loss(q: torch.Tensor) -> torch.Tensor:
    """The deterministic policy's loss: minus the first critic's mean, ``[N, B]`` (arXiv:1802.09477)."""
    return -q[0].mean()


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


def scaled_log_policy(q: torch.Tensor, temperature: float) -> torch.Tensor:
    """``temperature * log softmax(q / temperature)``, ``[B, A]`` to ``[B, A]`` (appendix B.1, where it is stable)."""
    return temperature * (q / temperature).log_softmax(dim=-1)


def munchausen_bonus(
    q: torch.Tensor,  # [B, A], of the target network at the observation
    action: torch.Tensor,  # [B] int64
    *,
    alpha: float,
    temperature: float,
    least: float,
) -> torch.Tensor:
    """The term added to each reward, ``[B]``: ``alpha * clip(temperature * log pi(a|s), least, 0)`` (2 and 3)."""
    chosen = scaled_log_policy(q, temperature).gather(1, action[:, None]).squeeze(1)
    return alpha * chosen.clamp(least, 0)


def soft_value(
    values: torch.Tensor,  # [B, A] or [N, B, A], of the next observation
    q: torch.Tensor,  # [B, A], their means, which make the policy
    temperature: float,
) -> torch.Tensor:
    """``sum_a pi(a|s') * (values(s', a) - temperature * log pi(a|s'))``, ``[B]`` or ``[N, B]`` (equation 1)."""
    log_policy = scaled_log_policy(q, temperature)
    return ((log_policy / temperature).exp() * (values - log_policy)).sum(dim=-1)


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
