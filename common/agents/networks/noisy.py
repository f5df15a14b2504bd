"""Noisy networks (arXiv:1706.10295): linear layers whose weights have noise of a learnt size, for exploration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from common.agents.machinery.optimizers import undecayed


class NoisyLinear(nn.Module):
    """A linear layer with factorised Gaussian noise: ``(W + S * e_out e_in^T) x + b + s * e_out`` (10, 11 and 3.2).

    It has noise only within ``noise_in``; elsewhere it is the layer itself, as evaluations and exported policies
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

    @property
    def n_numbers(self) -> int:
        """How many normal numbers make the noise: as many as the layer has inputs and outputs."""
        return sum(self.layer.weight.shape)

    def draw(self, generator: torch.Generator) -> None:
        """Draw the noise of the next calls."""
        weight = self.layer.weight
        self.take(torch.randn(self.n_numbers, generator=generator, device=weight.device, dtype=weight.dtype))

    def take(self, normal: torch.Tensor) -> None:
        """Make the noise of the next calls of normal numbers: ``[n_numbers]``, or ``[B, n_numbers]`` for each row."""
        noise = normal.sign() * normal.abs().sqrt()
        n_out = self.layer.weight.shape[0]
        self._noise = noise[..., :n_out], noise[..., n_out:]

    def rest(self) -> None:
        """Have no noise from now on."""
        self._noise = None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; noise of B rows needs ``[..., B, in_features]``."""
        if self._noise is None:
            return self.layer(features)  # type: ignore[no-any-return]
        out, in_ = self._noise
        if out.dim() == 2:  # (S * e_out e_in^T) x is e_out * S (e_in * x), which needs no matrix for each row.
            noise = functional.linear(features * in_, self.sigma, self.bias_sigma)
            return self.layer(features) + out * noise  # type: ignore[no-any-return]
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
def noise_in(source: torch.Generator | torch.Tensor, *nets: nn.Module) -> Iterator[None]:
    """Give every noisy layer of some networks noise until the block ends.

    Args:
        source: draws the noise; or normal numbers ``[B, M]``, M of all layers, that make other noise for each row.
        nets: the networks.
    """
    layers = noisy_layers(*nets)
    if isinstance(source, torch.Generator):
        for layer in layers:
            layer.draw(source)
    else:
        parts = torch.split(source, [layer.n_numbers for layer in layers], dim=1)
        for layer, numbers in zip(layers, parts, strict=True):
            layer.take(numbers)
    try:
        yield
    finally:
        for layer in layers:
            layer.rest()


def noisy_layers(*nets: nn.Module) -> list[NoisyLinear]:
    """The noisy layers of some networks."""
    return [layer for net in nets for layer in net.modules() if isinstance(layer, NoisyLinear)]
