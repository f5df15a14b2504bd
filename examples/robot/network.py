"""Small convolutions for each camera, beside the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn


class CamerasAndState(nn.Module):
    """Two layers of convolutions for each picture ``[C, H, W]``; vectors go to the head without them.

    Args:
        in_shape: by path, the shape of each part of an observation.
        out_dim: number of outputs.
        camera_dim: features of each picture.
    """

    def __init__(self, in_shape: Mapping[str, Sequence[int]], out_dim: int, camera_dim: int = 50) -> None:
        super().__init__()
        cameras = {path: shape for path, shape in in_shape.items() if len(shape) == 3}
        self._vectors = [path for path in in_shape if path not in cameras]
        self.cameras = nn.ModuleDict({path: self._encoder(shape, camera_dim) for path, shape in cameras.items()})
        n_vectors = sum(torch.Size(in_shape[path]).numel() for path in self._vectors)
        self.head = nn.Linear(len(cameras) * camera_dim + n_vectors, out_dim)

    @staticmethod
    def _encoder(shape: Sequence[int], n_features: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
        layers.append(nn.Flatten())
        with torch.no_grad():
            size = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
        return nn.Sequential(*layers, nn.Linear(size, n_features), nn.LayerNorm(n_features), nn.Tanh())

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Observations of B rows to ``[B, out_dim]``."""
        features = [encode(obs[path] / 255 - 0.5) for path, encode in self.cameras.items()]
        return self.head(torch.cat([*features, *(obs[path] for path in self._vectors)], dim=1))  # type: ignore[no-any-return]
