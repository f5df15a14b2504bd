"""From the outputs of a network to the values of actions."""

from __future__ import annotations

import torch
from torch import nn

from common.agents.networks.layers import Observed


class DuelingNetwork(nn.Module):
    """Action values of a state value and advantages: ``Q = V + A - mean A`` (arXiv:1511.06581, 9).

    The two streams part in the last layer of ``net`` only, whatever network it is: its first output is V, the others
    are A. The paper gives each stream a hidden layer of its own; a user's own network can do so.

    Args:
        net: gives ``[B, 1 + A]``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, A]``."""
        value, advantage = self.net(obs).tensor_split((1,), dim=1)  # [B, 1], [B, A]
        return value + advantage - advantage.mean(dim=1, keepdim=True)  # type: ignore[no-any-return]
