"""Networks; a user's own is any ``torch.nn.Module`` factory named ``module:attr``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


class Mlp(nn.Module):
    """ReLU multi-layer perceptron; observations of any shape are flattened.

    Args:
        in_shape: shape of one observation.
        out_dim: number of outputs.
        units: width of each hidden layer.
    """

    def __init__(self, in_shape: Sequence[int], out_dim: int, units: Sequence[int]) -> None:
        super().__init__()
        widths = [int(torch.Size(in_shape).numel()), *units]
        hidden = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU(inplace=True))]
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` to ``[B, out_dim]``."""
        return self.layers(obs.float())  # type: ignore[no-any-return]


class Critics(nn.Module):
    """Independent action values ``Q_i(s, a)``, each an ``Mlp`` over the observation and the action.

    Args:
        n: number of critics.
        obs_shape: shape of one observation.
        action_dim: size of one action.
        units: width of each hidden layer.
    """

    def __init__(self, n: int, obs_shape: Sequence[int], action_dim: int, units: Sequence[int]) -> None:
        super().__init__()
        inputs = torch.Size(obs_shape).numel() + action_dim
        self.nets = nn.ModuleList(Mlp((inputs,), 1, units) for _ in range(n))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """``[B, *obs_shape]`` and ``[B, A]`` to ``[N, B]``."""
        inputs = torch.cat((obs.flatten(1).float(), action), dim=1)
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
