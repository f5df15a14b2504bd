"""Adam and RMSprop for captured updates, without the import of torch.compile: a second and 73 MB in each process.

torch excludes some methods from torch.compile, and for this imports torch.compile at their first call. crossborder
compiles nothing, and an actor would pay for the import when it builds its optimiser and when it captures its actions.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class UncompiledOptimizer(Optimizer):
    """The base of an optimiser, before one of torch's if there is one."""

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


class Adam(UncompiledOptimizer, torch.optim.Adam):
    """torch's fused Adam (arXiv:1412.6980), a third of the time of torch's default for a small network on a CPU.

    The counts of steps that torch keeps for each parameter are elements of one tensor, so that one operation adds to
    all of them: with six parameters, 3 µs instead of 18.

    Args:
        parameters: the parameters that it changes.
        lr: learning rate, a number or a float32 scalar on the parameters' device.
        given: ``betas`` and ``eps`` of ``torch.optim.Adam``.
    """

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
