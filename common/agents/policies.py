"""Greedy policies: modules from observations to actions as the environment takes them, to act by and to export."""

from __future__ import annotations

import torch
from torch import nn

from common.agents.actions import ActionScale


class GreedyQ(nn.Module):
    """Takes the action of the highest value.

    Args:
        qnet: observations ``[n, *shape]`` to values ``[n, A]``.
        actions: what the environment takes for each of them, ``[A, *action_shape]``.
    """

    actions: torch.Tensor

    def __init__(self, qnet: nn.Module, actions: torch.Tensor) -> None:
        super().__init__()
        self.qnet = qnet
        self.register_buffer("actions", actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[n, *shape]`` to ``[n, *action_shape]``."""
        return self.actions[self.qnet(obs).argmax(dim=1)]


class GreedyActor(nn.Module):
    """Takes tanh of the first ``A`` of an actor's outputs: the means of a Gaussian policy, or all it has.

    Args:
        actor: observations ``[n, *shape]`` to ``[n, outputs]``.
        scale: of the actions.
    """

    def __init__(self, actor: nn.Module, scale: ActionScale) -> None:
        super().__init__()
        self.actor, self._scale = actor, scale

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[n, *shape]`` to ``[n, *action_shape]``."""
        return self._scale.to_env(self.actor(obs)[:, : self._scale.size].tanh())
