"""Spectral normalisation (arXiv:1802.05957): a layer's weights, divided by their largest singular value."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

FIRST_ITERATIONS = 15
"""Power iterations at the beginning; each call in train mode adds one."""


class SpectralConv2d(nn.Conv2d):
    """A convolution whose kernel ``[out, in * height * width]`` has the spectral norm 1.

    ``W / |W^T u|``, where ``u`` follows the left singular vector of the largest singular value by one power iteration
    in each call in train mode (algorithm 1 of the paper). In eval mode ``u`` does not change; it is part of the model.

    Arguments are those of ``torch.nn.Conv2d``.
    """

    u: torch.Tensor  # [out]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("u", functional.normalize(torch.randn(self.out_channels), dim=0))
        for _ in range(FIRST_ITERATIONS):
            self._iterate()

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """``[B, in, H, W]`` to ``[B, out, H', W']``."""
        if self.training:
            self._iterate()
        # A copy: the next call changes u before the gradients of this one are computed.
        norm = torch.mv(self.weight.flatten(1).t(), self.u.clone()).norm()
        return self._conv_forward(maps, self.weight / norm, self.bias)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _iterate(self) -> None:
        matrix = self.weight.flatten(1)
        v = functional.normalize(torch.mv(matrix.t(), self.u), dim=0)
        self.u.copy_(functional.normalize(torch.mv(matrix, v), dim=0))
