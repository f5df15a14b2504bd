"""Makes the hidden layers of an actor-critic from its settings: a plain perceptron, or SimBa's residual blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from common.agents.networks.layers import ACTIVATIONS, Activation, Head, Linear, Mlp, Normalization
from common.settings import Settings


class LayersConfig(Settings):
    """The settings of hidden layers."""

    architecture: Literal["mlp", "simba"] = Field(
        "mlp",
        description="The kind of network that units describes. mlp: plain layers, one after another; simba: a "
        "residual block with its own LayerNorm for each entry, all of one width (arXiv:2410.09754).",
    )
    activation: Activation = Field("relu", description="The activation function after each hidden layer.")
    normalization: Normalization = Field(
        "none",
        description="The normalization of hidden layers: none, layer (LayerNorm), or batch (batch renormalization, "
        "as in CrossQ).",
    )

    @model_validator(mode="after")
    def _simba_has_its_own(self) -> LayersConfig:
        if self.architecture == "simba" and self.normalization != "none":
            raise ValueError(
                f"normalization: {self.normalization} does not go with architecture: simba, whose blocks have a "
                "LayerNorm; use architecture: mlp, or leave normalization out"
            )
        return self

    def build(self, n_inputs: int, n_outputs: int, units: Sequence[int]) -> nn.Module:
        """Make the network from features ``[B, n_inputs]`` to ``[B, n_outputs]``."""
        if self.architecture == "simba":
            return Simba(n_inputs, n_outputs, units, activation=self.activation)
        return Mlp((n_inputs,), n_outputs, units, activation=self.activation, normalization=self.normalization)

    @property
    def has_norms(self) -> bool:
        """Whether hidden layers are normalised in any way."""
        return self.architecture == "simba" or self.normalization != "none"


class ResidualBlock(nn.Module):
    """``x + W2 f(W1 LayerNorm(x))``, four times as wide inside (SimBa, arXiv:2410.09754, 4.2).

    Weights begin as He et al. draw them (arXiv:1502.01852), as in the authors' code.

    Args:
        width: of the features.
        activation: f.
    """

    def __init__(self, width: int, activation: Activation = "relu") -> None:
        super().__init__()
        wide, narrow = Linear(width, 4 * width), Linear(4 * width, width)
        for layer in (wide, narrow):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(nn.LayerNorm(width), wide, ACTIVATIONS[activation](), narrow)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, width]`` to ``[B, width]``."""
        return features + self.layers(features)  # type: ignore[no-any-return]


class Simba(nn.Module):
    """A linear layer, residual blocks, a LayerNorm and the outputs (SimBa, arXiv:2410.09754).

    The paper normalises observations by running statistics before these layers: ``normalize_observations``.

    Args:
        n_inputs: features of its inputs.
        n_outputs: number of outputs.
        units: the width of each block; all are the same.
        activation: inside blocks.
    """

    def __init__(self, n_inputs: int, n_outputs: int, units: Sequence[int], *, activation: Activation = "relu") -> None:
        super().__init__()
        width = units[0]
        first = Linear(n_inputs, width)
        nn.init.orthogonal_(first.weight)
        nn.init.zeros_(first.bias)
        blocks = [ResidualBlock(width, activation) for _ in units]
        self.layers = nn.Sequential(first, *blocks, nn.LayerNorm(width), Head(width, n_outputs))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, n_inputs]`` to ``[B, n_outputs]``."""
        return self.layers(features.float())  # type: ignore[no-any-return]
