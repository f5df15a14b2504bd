"""Your own network for DQN: a dueling network, which learns from three-step returns.

Run: learner-server --config examples/own_network.yaml --local-actors 2
"""

from collections.abc import Sequence

import torch
from torch import nn


class Dueling(nn.Module):
    """``Q = V + A - mean A`` (Wang et al., arXiv:1511.06581) over flat observations.

    ``in_shape`` and ``out_dim`` come from DQN, everything else from ``network.params``.
    """

    def __init__(self, in_shape: Sequence[int], out_dim: int, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(in_shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, out_dim)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features = self.body(obs)  # [B, width]
        advantage = self.advantage(features)  # [B, out_dim]
        q: torch.Tensor = self.value(features) + advantage - advantage.mean(dim=1, keepdim=True)
        return q
