"""Noisy networks (arXiv:1706.10295): linear layers whose weights have noise of a learnt size, for exploration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call

from common.agents.networks.layers import undecayed


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise: ``(W + S * e_out e_in^T) x + b + s * e_out`` (10, 11 and 3.2).

    It has noise only within ``drawn_noise``; elsewhere it is the layer itself, as evaluations and exported policies
    need it.

    Args:
        layer: has the first W and b; torch draws them as the paper does, uniformly within ``1 / sqrt(in_features)``.
        sigma: every element of S and s is ``sigma / sqrt(in_features)`` at first; the paper uses 0.5.
    """

    def __init__(self, layer: nn.Linear, sigma: float) -> None:
        super().__init__()
        self.layer = layer
        first = sigma / math.sqrt(layer.in_features)
        self.sigma = undecayed(torch.full_like(layer.weight, first))
        self.bias_sigma = nn.Parameter(torch.full_like(layer.weight[:, 0], first)) if layer.bias is not None else None
        self._noise: tuple[torch.Tensor, torch.Tensor] | None = None

    def draw(self, generator: torch.Generator) -> None:
        """Draw the noise of the next calls."""
        weight = self.layer.weight
        n_out, n_in = weight.shape
        normal = torch.randn(n_out + n_in, generator=generator, device=weight.device, dtype=weight.dtype)
        noise = normal.sign() * normal.abs().sqrt()
        self._noise = noise[:n_out], noise[n_out:]

    def rest(self) -> None:
        """Have no noise from now on."""
        self._noise = None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        if self._noise is None:
            return self.layer(features)  # type: ignore[no-any-return]
        out, in_ = self._noise
        noisy = {"weight": self.layer.weight + self.sigma * torch.outer(out, in_)}
        if self.bias_sigma is not None:
            noisy["bias"] = self.layer.bias + self.bias_sigma * out
        return functional_call(self.layer, noisy, (features,))  # type: ignore[no-any-return]


def add_noise(net: nn.Module, sigma: float) -> nn.Module:
    """Turn every linear layer of a network into a ``NoisyLinear``; the network is changed and returned."""
    if isinstance(net, nn.Linear):
        return NoisyLinear(net, sigma)
    for name, child in net.named_children():
        if not isinstance(child, NoisyLinear):
            setattr(net, name, add_noise(child, sigma))
    return net


@contextmanager
def drawn_noise(generator: torch.Generator, *nets: nn.Module) -> Iterator[None]:
    """Draw noise for every noisy layer of some networks; they have it until the block ends."""
    layers = [layer for net in nets for layer in net.modules() if isinstance(layer, NoisyLinear)]
    for layer in layers:
        layer.draw(generator)
    try:
        yield
    finally:
        for layer in layers:
            layer.rest()
