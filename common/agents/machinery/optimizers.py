"""Optimisers and their settings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import nn
from torch.optim import Optimizer

from common.settings import Settings


class UncompiledOptimizer(Optimizer):
    """The base of an optimiser that never imports torch.compile: a second and 73 MB in each process.

    torch excludes some methods from torch.compile, and for this imports torch.compile at their first call. crossborder
    compiles nothing, and an actor would pay for the import when it builds its optimiser and captures its actions.
    """

    kept: frozenset[str] = frozenset()
    """The names of what the optimiser keeps of each parameter; empty: not known."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Change the parameters that have gradients."""
        for group in self.param_groups:
            learnt = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if learnt:
                self._change([parameter for parameter, _ in learnt], [grad for _, grad in learnt], group)

    def _change(self, parameters: list[torch.Tensor], grads: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Change these parameters of a group by their gradients."""
        raise NotImplementedError


class RMSprop(UncompiledOptimizer):
    """RMSprop (Tieleman and Hinton 2012): ``p -= lr * g / (sqrt(mean(g^2)) + eps)``.

    Its learning rate may be a tensor; torch's RMSprop would freeze it in a captured update.

    Centred (Graves, arXiv:1308.0850), the denominator is ``sqrt(mean(g^2) - mean(g)^2) + eps``.

    Args:
        parameters: the parameters that it changes.
        lr: learning rate, a number or a float32 scalar on the parameters' device.
        alpha: decay of the means.
        eps: added to the denominator.
        centered: whether the square of the mean gradient is subtracted.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float | torch.Tensor, *, alpha: float, eps: float, centered: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr, "alpha": alpha, "eps": eps, "centered": centered})
        self.kept = frozenset({"step", "square_avg", "grad_avg"} if centered else {"step", "square_avg"})

    def _change(self, parameters: list[torch.Tensor], grads: list[torch.Tensor], group: dict[str, Any]) -> None:
        states = [self._state_of(parameter, centered=group["centered"]) for parameter in parameters]
        squares, share = [state["square_avg"] for state in states], 1 - group["alpha"]
        torch._foreach_add_([state["step"] for state in states], 1)
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, grads, grads, share)
        spread: list[torch.Tensor] | tuple[torch.Tensor, ...] = squares
        if group["centered"]:
            means = [state["grad_avg"] for state in states]
            torch._foreach_lerp_(means, grads, share)
            # Rounding may leave a variance below zero, whose root is no number.
            spread = torch._foreach_clamp_min(torch._foreach_addcmul(squares, means, means, -1), 0.0)
        divisors = torch._foreach_add(torch._foreach_sqrt(spread), group["eps"])
        moves = torch._foreach_mul(torch._foreach_div(grads, list(divisors)), group["lr"])
        torch._foreach_sub_(parameters, list(moves))

    def _state_of(self, parameter: torch.Tensor, *, centered: bool) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["square_avg"] = torch.zeros_like(parameter)
            if centered:
                state["grad_avg"] = torch.zeros_like(parameter)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state as torch does, with the counts on the parameters' devices: torch leaves them on the CPU."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)


class Adam(UncompiledOptimizer, torch.optim.Adam):
    """torch's fused Adam (arXiv:1412.6980), a third of the time of torch's default for a small network on a CPU.

    The counts of steps that torch keeps for each parameter are elements of one tensor, so that one operation adds to
    all of them: with six parameters, 3 µs instead of 18.

    Args:
        parameters: the parameters that it changes.
        lr: learning rate, a number or a float32 scalar on the parameters' device.
        given: ``betas`` and ``eps`` of ``torch.optim.Adam``.
    """

    kept = frozenset({"step", "exp_avg", "exp_avg_sq"})

    def __init__(self, parameters: Any, lr: float | torch.Tensor, **given: Any) -> None:
        super().__init__(parameters, lr=lr, fused=True, **given)

    def _change(self, parameters: list[torch.Tensor], grads: list[torch.Tensor], group: dict[str, Any]) -> None:
        self._make_states([parameter for parameter in parameters if not self.state[parameter]])
        states = [self.state[parameter] for parameter in parameters]
        counts = [state["step"] for state in states]
        all_counts = counts[0]._base
        # Parameters that got their first gradients later, or have none this time, are counted apart.
        if all_counts is not None and len(all_counts) == len(counts) and all(c._base is all_counts for c in counts):
            all_counts.add_(1)
        else:
            torch._foreach_add_(counts, 1)
        torch._fused_adam_(
            parameters,
            grads,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _make_states(self, parameters: list[torch.Tensor]) -> None:
        if not parameters:
            return
        counts = torch.zeros(len(parameters), device=parameters[0].device)
        for i, parameter in enumerate(parameters):
            mean, square = (torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2))
            self.state[parameter] = {"step": counts[i], "exp_avg": mean, "exp_avg_sq": square}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state as torch does, with the counts of each group in one tensor again."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            states = [self.state[parameter] for parameter in group["params"] if self.state[parameter]]
            if states:
                counts = torch.stack([state["step"] for state in states])
                for i, state in enumerate(states):
                    state["step"] = counts[i]


Decay = Annotated[float, Field(ge=0, lt=1)]


class ScheduleConfig(Settings):
    """A learning rate or clip_range that changes. It counts the optimiser's own gradient steps, which checkpoints keep.

    With TD3's ``policy_delay`` of 2, for example, the policy's optimiser counts half as many steps as the critics'.
    """

    kind: Literal["constant", "linear", "cosine"] = Field(
        "linear",
        description="The form of the value's fall after its warm-up. constant: no fall; linear: a straight line; "
        "cosine: half a wave.",
    )
    steps: PositiveInt | None = Field(
        None,
        description="The number of gradient steps, warm-up included, after which the value is the last one.",
    )
    final: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="The last value, a share of lr or clip_range.")
    warmup: NonNegativeInt = Field(
        0,
        description="The number of gradient steps in which the value first rises linearly to lr or clip_range; 0: no "
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
    if any(hasattr(parameter, "limits") for parameter in learnt):
        _keep_limits(optimizer)
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


def undecayed(values: torch.Tensor) -> nn.Parameter:
    """A parameter that weight decay leaves alone, such as the size of exploration noise."""
    parameter = nn.Parameter(values)
    parameter.decays = False  # type: ignore[attr-defined] # AdamW asks for it.
    return parameter


def limited(values: torch.Tensor, low: float, high: float) -> nn.Parameter:
    """A parameter that begins and stays between two limits.

    A clamp alone would hold it for ever once it is outside: the clamp has no gradient there.
    """
    parameter = nn.Parameter(values.clamp(low, high))
    parameter.limits = low, high  # type: ignore[attr-defined] # Every optimiser asks for them.
    return parameter


def _keep_limits(optimizer: torch.optim.Optimizer) -> None:
    """Let every step of the optimiser end by bringing limited parameters back between their limits."""

    @torch.no_grad()
    def bring_back(stepping: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in stepping.param_groups[0]["params"]:
            if hasattr(parameter, "limits"):
                parameter.clamp_(*parameter.limits)

    optimizer.register_step_post_hook(bring_back)


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
