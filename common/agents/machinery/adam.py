"""Adam in one kernel for all parameters, and one operation that counts its steps."""

from __future__ import annotations

from typing import Any

import torch

from common.agents.machinery.uncompiled import UncompiledOptimizer


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

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's signature
        """Change the parameters that have gradients."""
        for group in self.param_groups:
            learnt = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if learnt:
                self._change([parameter for parameter, _ in learnt], [grad for _, grad in learnt], group)

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
