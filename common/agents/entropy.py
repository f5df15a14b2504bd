"""Policies whose entropy is rewarded. Shapes: B batch, A dimensions of an action or discrete actions, N critics."""

from __future__ import annotations

import math

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import nn
from torch.nn import functional

from common.agents.losses.values import least_value
from common.settings import Settings


class EntropyCoef(nn.Module):
    """SAC's entropy coefficient, kept as its logarithm so that it stays positive.

    Args:
        initial: its first value.
        learned: whether it may change.
    """

    def __init__(self, initial: float, *, learned: bool) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)), requires_grad=learned)

    def forward(self) -> torch.Tensor:
        """The coefficient, a scalar."""
        return self.log.exp()


class EntCoefConfig(Settings):
    """The settings of agents whose policy is rewarded for its entropy."""

    ent_coef: PositiveFloat = Field(
        1.0,
        description="The entropy coefficient: the weight of the entropy beside the return. With auto_ent_coef, its "
        "first value.",
    )
    auto_ent_coef: bool = Field(
        True, description="Whether the entropy coefficient is learned so that the policy keeps target_entropy."
    )
    target_entropy: float | None = Field(
        None,
        description="The entropy that the policy keeps, in nats, for actions in [-1, 1]; null: minus the number of "
        "their dimensions.",
    )

    @model_validator(mode="after")
    def _is_learned(self) -> EntCoefConfig:
        if not self.auto_ent_coef:
            reason = "a coefficient that is not learned has neither a target nor a learning rate"
            self.refuse_beside("auto_ent_coef: false", "target_entropy", "ent_coef_lr", reason=reason)
        return self


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


def squash_lstd(raw: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """``low + (high - low) (tanh(raw) + 1) / 2``: a logarithm of a standard deviation between two limits.

    Unlike a clamped logarithm it always has a gradient, as in the code of FastSAC's authors (arXiv:2512.01996).
    """
    return low + (high - low) / 2 * (raw.tanh() + 1)


def soft_value(
    q_target: torch.Tensor,  # [N, B]
    log_prob: torch.Tensor,  # [B]
    ent_coef: torch.Tensor,  # []
) -> torch.Tensor:
    """``min_i Q_i(s', a') - ent_coef * log pi(a'|s')``, ``[B]`` (arXiv:1812.05905, 3)."""
    return least_value(q_target) - ent_coef * log_prob


def discrete_soft_value(
    q_target: torch.Tensor,  # [N, B, A]
    log_prob: torch.Tensor,  # [B, A]
    ent_coef: torch.Tensor,  # []
) -> torch.Tensor:
    """``sum_a pi(a|s') (min_i Q_i(s', a) - ent_coef * log pi(a|s'))``, ``[B]`` (arXiv:1910.07207, 10)."""
    return (log_prob.exp() * (least_value(q_target) - ent_coef * log_prob)).sum(dim=1)


def ent_coef_loss(
    log_ent_coef: torch.Tensor,  # []
    log_prob: torch.Tensor,  # [B]
    target_entropy: float | torch.Tensor,  # or [B]
) -> torch.Tensor:
    """The loss whose descent raises the coefficient while the entropy is below its target (arXiv:1812.05905, 18).

    The entropy is the mean of ``-log_prob``. The loss is linear in the logarithm of the coefficient, as in the
    authors' code, so its gradient does not fade as the coefficient gets small.
    """
    return -log_ent_coef * (log_prob + target_entropy).mean()
