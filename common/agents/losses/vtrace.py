"""Actor-critic learning from steps of an older policy: V-trace (arXiv:1802.01561). Shapes: B batch, L steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from common.agents.losses.sequence_losses import masked_loss


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
        excess, advantage = corrected_advantages(
            reward, discount, value[:, :-1], value[:, 1:], goes_on=goes_on, rho=rho, c=c
        )
        target = value[:, :-1] + torch.where(mask, excess, 0.0)
        return VTrace(target, torch.where(mask, rho * advantage, 0.0))


@torch.no_grad()
def corrected_advantages(
    reward: torch.Tensor,  # [B, L]
    discount: torch.Tensor,  # [B, L], gamma; 0 where the episode terminated
    value: torch.Tensor,  # [B, L], V(x)
    next_value: torch.Tensor,  # [B, L], V of the observation after each step
    *,
    goes_on: torch.Tensor,  # [B, L] bool: the next step is of the same episode; the last step is False
    rho: torch.Tensor,  # [B, L], the weight of each step's own error
    c: torch.Tensor,  # [B, L], the weight of later errors
    gae_lambda: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What V-trace adds to the values, ``v_s - V(x_s)``, and the advantages of the actions; both are ``[B, L]``.

    ``delta_t = r_t + gamma V(x_(t+1)) - V(x_t)``, ``e_t = rho_t delta_t + c_t gamma lambda e_(t+1)`` and
    ``A_t = delta_t + gamma lambda e_(t+1)``. With lambda 1 this is V-trace (arXiv:1802.01561). With every weight 1, e
    and A are the generalised advantages of arXiv:1506.02438. Steps after which the episode does not go on have no e
    beyond them. No gradient goes through the results.
    """
    delta = reward + discount * next_value - value
    further = discount * gae_lambda
    own, weight = (rho * delta).unbind(dim=1), (c * further).unbind(dim=1)
    follows, beyond = goes_on.unbind(dim=1), torch.zeros_like(own[-1])
    excess: list[torch.Tensor] = []
    for t in range(len(own) - 1, -1, -1):
        beyond = own[t] + torch.where(follows[t], weight[t] * beyond, 0.0)
        excess.append(beyond)
    found = torch.stack(excess[::-1], dim=1)
    return found, delta + torch.where(goes_on, further * functional.pad(found[:, 1:], (0, 1)), 0.0)


def policy_gradient_loss(
    log_prob: torch.Tensor,  # [B, L], of the actions by the learner's policy
    advantage: torch.Tensor,  # [B, L]
    mask: torch.Tensor,  # [B, L] bool
    weight: torch.Tensor | None = None,  # [B]
) -> torch.Tensor:
    """Minus the mean of ``advantage * log pi(a|x)``, weighted if there are weights (arXiv:1802.01561, 4.2)."""
    return -masked_loss(advantage * log_prob, mask, weight)


def baseline_loss(
    value: torch.Tensor,  # [B, L]
    target: torch.Tensor,  # [B, L]
    mask: torch.Tensor,  # [B, L] bool
    weight: torch.Tensor | None = None,  # [B]
) -> torch.Tensor:
    """The mean of ``(v - V(x))^2 / 2``, weighted if there are weights (arXiv:1802.01561, 4.2)."""
    return 0.5 * masked_loss((target - value).square(), mask, weight)
