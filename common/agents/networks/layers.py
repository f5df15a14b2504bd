"""The layers of which networks are made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

Observed = torch.Tensor | dict[str, torch.Tensor]
"""Observations of B rows: one tensor ``[B, *shape]``, or one for each leaf by path."""


class Head(nn.Linear):
    """A network's last layer: its outputs are float32 even under autocast, where bfloat16 rounds 100.3 to 100.5."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        device = features.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(features)
        with torch.autocast(device, enabled=False):
            return super().forward(features.float())


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
        self.layers = nn.Sequential(nn.Flatten(), *hidden, Head(widths[-1], out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` to ``[B, out_dim]``."""
        return self.layers(obs.float())  # type: ignore[no-any-return]
