"""RMSprop whose learning rate may be a tensor; torch's RMSprop would freeze it in a captured update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from common.agents.machinery.uncompiled import UncompiledOptimizer


class RMSprop(UncompiledOptimizer, torch.optim.Optimizer):
    """RMSprop (Tieleman and Hinton 2012): ``p -= lr * g / (sqrt(mean(g^2)) + eps)``.

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

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Change the parameters that have gradients."""
        for group in self.param_groups:
            learnt = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if learnt:
                self._change([parameter for parameter, _ in learnt], [grad for _, grad in learnt], group)

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
