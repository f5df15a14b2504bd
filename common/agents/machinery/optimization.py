"""Optimisers and their settings, and the steps of optimisers and of target networks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn

from common.agents.averaging import average_gradients
from common.agents.machinery.optimizers import Adam, RMSprop
from common.settings import Settings

Decay = Annotated[float, Field(ge=0, lt=1)]


class ScheduleConfig(Settings):
    """A learning rate that changes. It counts the optimiser's own gradient steps, which checkpoints keep.

    With TD3's ``policy_delay`` of 2, for example, the policy's optimiser counts half as many steps as the critics'.
    """

    kind: Literal["constant", "linear", "cosine"] = Field(
        "linear",
        description="The form of the rate's fall after its warm-up. constant: no fall; linear: a straight line; "
        "cosine: half a wave.",
    )
    steps: PositiveInt | None = Field(
        None,
        description="The number of gradient steps, warm-up included, after which the learning rate has its last value.",
    )
    final: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="The last learning rate, as a share of lr.")
    warmup: NonNegativeInt = Field(
        0,
        description="The number of gradient steps in which the learning rate first rises linearly to lr; 0: no "
        "warm-up.",
    )

    @model_validator(mode="after")
    def _has_an_end(self) -> ScheduleConfig:
        if self.kind != "constant" and (self.steps is None or self.steps <= self.warmup):
            raise ValueError(f"steps: expected more than those of the warm-up ({self.warmup}), found {self.steps}")
        if self.kind == "constant":
            self.refuse_beside("kind: constant", "steps", "final", reason="a constant rate does not fall")
        return self

    def factor(self, taken: torch.Tensor) -> torch.Tensor:
        """The share of ``lr`` at the step after ``taken`` steps; both are float32 scalars."""
        factor = torch.ones_like(taken)
        if self.steps is not None and self.kind != "constant":
            progress = ((taken - self.warmup) / (self.steps - self.warmup)).clamp(0, 1)
            left = 1 - progress if self.kind == "linear" else (1 + (math.pi * progress).cos()) / 2
            factor = self.final + (1 - self.final) * left
        return factor * ((taken + 1) / self.warmup).clamp(max=1) if self.warmup else factor


class AnyOptimizerConfig(Settings):
    """The settings of every optimiser."""

    eps: PositiveFloat = Field(
        1e-8, description="A small number that is added to the denominator, so that nothing is divided by 0."
    )
    schedule: ScheduleConfig | None = Field(
        None, description="The schedule of the learning rate; null: it is constant."
    )


class AdamConfig(AnyOptimizerConfig):
    """Adam (arXiv:1412.6980)."""

    kind: Literal["adam"] = Field("adam", description="The Adam optimiser.")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999), description="The decay per step of the running means of gradients and of their squares."
    )


class AdamWConfig(AnyOptimizerConfig):
    """Adam with a decay of weights that is separate from the gradients (arXiv:1711.05101).

    Only parameters of two and more dimensions decay, the weights of layers. Biases, the gains of normalisation, the
    sizes of exploration noise and single numbers, such as SAC's entropy coefficient, do not.
    """

    kind: Literal["adamw"] = Field("adamw", description="The AdamW optimiser: Adam with weight decay.")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999), description="The decay per step of the running means of gradients and of their squares."
    )
    weight_decay: NonNegativeFloat = Field(
        0.01,
        description="The share of each weight, times the learning rate, that each step subtracts from it. Biases do "
        "not decay.",
    )


class RMSpropConfig(AnyOptimizerConfig):
    """RMSprop (Tieleman and Hinton 2012), optionally centred, as the first DQN for Atari used it."""

    kind: Literal["rmsprop"] = Field("rmsprop", description="The RMSprop optimiser.")
    alpha: Decay = Field(0.99, description="The decay per step of the running mean of squared gradients.")
    centered: bool = Field(
        False,
        description="Whether gradients are divided by their standard deviation, and not by the root of their mean "
        "square.",
    )


OptimizerConfig = Annotated[AdamConfig | AdamWConfig | RMSpropConfig, Field(discriminator="kind")]


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Adam:
    """Adam (arXiv:1412.6980) with torch's other defaults."""
    return Adam(parameters, lr)


def build_optimizer(
    parameters: Iterable[nn.Parameter], lr: float, config: AdamConfig | AdamWConfig | RMSpropConfig
) -> torch.optim.Optimizer:
    """Make the optimiser that a configuration asks for, for parameters that are on their device already.

    A scheduled learning rate is a tensor that each step computes from the number of steps before it. So it changes in
    captured updates too, and no other code has to advance it.

    Args:
        parameters: at least one.
        lr: learning rate; with a schedule, the greatest learning rate.
        config: all other settings.
    """
    learnt = list(parameters)
    rate = lr if config.schedule is None else torch.tensor(lr, device=learnt[0].device)
    optimizer: torch.optim.Optimizer
    if isinstance(config, RMSpropConfig):
        optimizer = RMSprop(learnt, rate, alpha=config.alpha, eps=config.eps, centered=config.centered)
    else:
        optimizer = Adam(learnt, rate, betas=config.betas, eps=config.eps)
    if config.schedule is not None:
        _follow_schedule(optimizer, lr, config.schedule)
    if isinstance(config, AdamWConfig) and config.weight_decay:
        _decay_weights(optimizer, config.weight_decay)
    return optimizer


def _follow_schedule(optimizer: torch.optim.Optimizer, lr: float, schedule: ScheduleConfig) -> None:
    """Let every step of the optimiser begin by computing its learning rate."""

    @torch.no_grad()
    def set_rate(stepping: torch.optim.Optimizer, *_: Any) -> None:
        group = stepping.param_groups[0]
        counts = (stepping.state[parameter]["step"] for parameter in group["params"] if stepping.state.get(parameter))
        taken = next(counts, None)  # A parameter without gradients has no count.
        rate = group["lr"]
        rate.copy_(lr * schedule.factor(torch.zeros_like(rate) if taken is None else taken))

    optimizer.register_step_pre_hook(set_rate)


def _decay_weights(optimizer: torch.optim.Optimizer, weight_decay: float) -> None:
    """Let every step of the optimiser begin by shrinking the weights, after a schedule has set the learning rate."""

    @torch.no_grad()
    def shrink(stepping: torch.optim.Optimizer, *_: Any) -> None:
        group = stepping.param_groups[0]
        learnt = (parameter for parameter in group["params"] if parameter.grad is not None)
        weights = [parameter for parameter in learnt if parameter.dim() >= 2 and getattr(parameter, "decays", True)]
        if weights:
            torch._foreach_mul_(weights, 1 - weight_decay * group["lr"])

    optimizer.register_step_pre_hook(shrink)


def descend(
    loss: torch.Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None
) -> torch.Tensor | None:
    """Take one step down ``loss``, a scalar, in the parameters of ``optimizer`` alone.

    Other networks that the loss went through get no gradients. With several ranks the loss is that of this rank's share
    of the batch, and all ranks take the same step, down the mean of their losses.

    Returns:
        The norm of the gradients before they were clipped to ``max_grad_norm``; None without a ``max_grad_norm``.
    """
    # A user's network may have layers that are not trained.
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
    average_gradients(parameters)
    norm = None if max_grad_norm is None else nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
    return norm


@torch.no_grad()
def track(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move ``target`` by the share ``tau`` towards ``online`` (Polyak averaging); 1 copies.

    Buffers, such as the statistics of batch normalisation, are copied: they are averages already.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for buffer_of_target, buffer in zip(target.buffers(), online.buffers(), strict=True):
        buffer_of_target.copy_(buffer)
