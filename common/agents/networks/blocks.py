"""Makes the hidden layers of an actor-critic from its settings: a plain perceptron, or residual blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional

from common.agents.networks.batch_renorm import NEVER, BatchRenorm
from common.agents.networks.layers import ACTIVATIONS, Activation, Head, Layers, Linear, Mlp, Normalization
from common.settings import Settings


@torch.no_grad()
def scale_to_unit(net: nn.Module) -> None:
    """Scale weights of a network to unit norm, in place; parameters that are not trained stay.

    What a normalisation makes of a layer does not depend on the size of its weights, but gradients are in inverse
    proportion to it. So as weights grow, the same learning rate would change the function less and less (SimBa-v2).

    Each unit of a linear layer gets weights of norm 1; biases stay. The gains and biases of a normalisation of F
    features get the norm ``sqrt(F)`` together, so that their features keep about the size 1 (arXiv:2604.04539, its
    authors' code).
    """
    for layer in net.modules():
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad:
            layer.weight.copy_(functional.normalize(layer.weight, dim=1, eps=1e-8))
        elif isinstance(layer, BatchRenorm | nn.LayerNorm | nn.RMSNorm):
            learnt: list[torch.Tensor] = [values for values in layer.parameters() if values.requires_grad]
            if learnt:
                norm = torch.cat(learnt).norm() + 1e-8
                torch._foreach_mul_(learnt, math.sqrt(len(learnt[0])) / norm)


def keep_unit(optimizer: torch.optim.Optimizer, nets: Sequence[nn.Module]) -> None:
    """Let every step of the optimiser of these networks end by scaling their weights to unit norm."""

    def scale(*_: Any) -> None:
        for net in nets:
            scale_to_unit(net)

    optimizer.register_step_post_hook(scale)


class LayersConfig(Settings):
    """The settings of hidden layers."""

    architecture: Literal["mlp", "simba", "flash"] = Field(
        "mlp",
        description="The kind of network that units describes. mlp: plain layers, one after another; simba: a "
        "residual block with its own LayerNorm for each entry, all of one width (arXiv:2410.09754); flash: the same "
        "with batch normalization after each layer (arXiv:2604.04539).",
    )
    activation: Activation = Field("relu", description="The activation function after each hidden layer.")
    normalization: Normalization = Field(
        "none",
        description="The normalization of hidden layers: none, layer (LayerNorm), or batch (batch renormalization, "
        "as in CrossQ).",
    )
    unit_weights: bool = Field(
        False,
        description="Whether each optimiser step ends by scaling the weights of each unit to the norm 1, so that the "
        "effective learning rate does not fall as weights grow (arXiv:2502.15280). It needs normalised layers.",
    )

    @model_validator(mode="after")
    def _blocks_have_their_own(self) -> LayersConfig:
        if self.architecture != "mlp" and self.normalization != "none":
            raise ValueError(
                f"normalization: {self.normalization} does not go with architecture: {self.architecture}, whose blocks "
                "have a normalization; use architecture: mlp, or leave normalization out"
            )
        if self.unit_weights and not self.has_norms:
            raise ValueError(
                "unit_weights: true needs layers that are normalised: set normalization, or architecture: flash"
            )
        return self

    def build(self, n_inputs: int, n_outputs: int, units: Sequence[int]) -> nn.Module:
        """Make the network from features ``[B, n_inputs]`` to ``[B, n_outputs]``."""
        net: nn.Module
        if self.architecture == "mlp":
            net = Mlp((n_inputs,), n_outputs, units, activation=self.activation, normalization=self.normalization)
        else:
            make = make_simba if self.architecture == "simba" else make_flash
            net = make(n_inputs, n_outputs, units, activation=self.activation)
        if self.unit_weights:
            scale_to_unit(net)
        return net

    @property
    def has_norms(self) -> bool:
        """Whether hidden layers are normalised in any way."""
        return self.architecture != "mlp" or self.normalization != "none"

    @property
    def has_batch_norms(self) -> bool:
        """Whether hidden layers are normalised by statistics of the batch."""
        return self.architecture == "flash" or self.normalization == "batch"


class Residual(nn.Module):
    """The sum of its inputs and of what its layers make of them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features, which the layers turn into others of the same shape, to the sums."""
        return features + self.layers(features)  # type: ignore[no-any-return]


def make_simba(n_inputs: int, n_outputs: int, units: Sequence[int], *, activation: Activation = "relu") -> Layers:
    """Make a linear layer, residual blocks, a LayerNorm and the outputs (SimBa, arXiv:2410.09754).

    The paper normalises observations by running statistics before these layers: ``normalize_observations``.

    Args:
        n_inputs: features of its inputs.
        n_outputs: number of outputs.
        units: the width of each block; all are the same.
        activation: inside blocks.
    """
    width = units[0]
    first = Linear(n_inputs, width)
    nn.init.orthogonal_(first.weight)
    nn.init.zeros_(first.bias)
    blocks = [make_simba_block(width, activation) for _ in units]
    return Layers(first, *blocks, nn.LayerNorm(width), Head(width, n_outputs))


def make_simba_block(width: int, activation: Activation = "relu") -> Residual:
    """Make ``x + W2 f(W1 LayerNorm(x))``, four times as wide inside (SimBa, arXiv:2410.09754, 4.2).

    Weights begin as He et al. draw them (arXiv:1502.01852), as in the authors' code.
    """
    wide, narrow = Linear(width, 4 * width), Linear(4 * width, width)
    for layer in (wide, narrow):
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return Residual(nn.LayerNorm(width), wide, ACTIVATIONS[activation](), narrow)


FLASH_EPS: Final = 1e-5
"""What FlashSAC's authors add to the variances of batches."""


def make_flash(n_inputs: int, n_outputs: int, units: Sequence[int], *, activation: Activation = "relu") -> Layers:
    """Make normalised inputs, a linear layer, residual blocks, an RMSNorm and the outputs (arXiv:2604.04539).

    As in the code of FlashSAC's authors, linear layers below a normalisation have no bias, which it would subtract
    again. For the arguments see ``make_simba``.
    """
    width = units[0]
    blocks = [make_flash_block(width, activation) for _ in units]
    inputs, first = BatchRenorm(n_inputs, eps=FLASH_EPS, warm_up=NEVER), Linear(n_inputs, width, bias=False)
    net = Layers(inputs, first, *blocks, nn.RMSNorm(width, eps=1e-6), Head(width, n_outputs))
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


def make_flash_block(width: int, activation: Activation = "relu") -> Residual:
    """Make ``x + f(N2(W2 f(N1(W1 x))))``, four times as wide inside, with batch normalisations N1 and N2 (FlashSAC)."""
    sizes = ((width, 4 * width), (4 * width, width))
    return Residual(*(layer for i, o in sizes for layer in (*_flash_layer(i, o), ACTIVATIONS[activation]())))


def _flash_layer(n_inputs: int, n_outputs: int) -> tuple[nn.Module, nn.Module]:
    linear = Linear(n_inputs, n_outputs, bias=False)
    return linear, BatchRenorm(n_outputs, eps=FLASH_EPS, warm_up=NEVER)
