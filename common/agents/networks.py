"""Networks; a user's own is any ``torch.nn.Module`` factory named ``module:attr``."""

from __future__ import annotations

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
