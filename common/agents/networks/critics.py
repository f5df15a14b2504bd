"""Networks that value an observation and an action together, and the entropy coefficient beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from common.agents.networks.layers import Mlp, Observed


class Critics(nn.Module):
    """Independent action values ``Q_i(s, a)``, each an ``Mlp`` over features of the observation and the action.

    Args:
        n: number of critics.
        encoder: turns observations into features ``[B, F]``, for all critics.
        n_features: F.
        action_dim: size of one action.
        units: width of each hidden layer.
    """

    def __init__(self, n: int, encoder: nn.Module, n_features: int, action_dim: int, units: Sequence[int]) -> None:
        super().__init__()
        self.encoder = encoder
        self.nets = nn.ModuleList(Mlp((n_features + action_dim,), 1, units) for _ in range(n))

    def forward(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Observations of B rows and actions ``[B, A]`` to ``[N, B]``."""
        inputs = torch.cat((self.encoder(obs).float(), action), dim=1)
        return torch.stack([net(inputs).squeeze(1) for net in self.nets])


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
