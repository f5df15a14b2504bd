"""Weights of unit norm, which keep the effective learning rate of normalised layers (SimBa-v2, FlashSAC).

What a normalisation makes of a layer does not depend on the size of the layer's weights, but gradients are in inverse
proportion to it. So as weights grow, the same learning rate changes the function less and less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.batch_norm import BatchRenorm


@torch.no_grad()
def scale_to_unit(net: nn.Module) -> None:
    """Scale weights of a network to unit norm, in place; parameters that are not trained stay.

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
