"""The layers from which networks are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import torch
from torch import nn

from common.agents.networks.batch_renorm import BatchRenorm
from common.agents.products import linear

Observed: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""Observations of B rows: one tensor ``[B, *shape]``, or one for each leaf by path."""
Activation = Literal["relu", "elu", "gelu", "leaky_relu", "silu", "tanh"]
Normalization = Literal["none", "layer", "batch"]
ACTIVATIONS: Final[Mapping[Activation, Callable[[], nn.Module]]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def flatten_time(obs: Observed) -> Observed:
    """Observations of B sequences ``[B, T, *shape]`` as those of B T rows ``[B * T, *shape]``."""
    return {path: leaf.flatten(0, 1) for path, leaf in obs.items()} if isinstance(obs, dict) else obs.flatten(0, 1)


def add_time(obs: Observed) -> Observed:
    """Observations of n lanes as sequences of one step, ``[n, *shape]`` to ``[n, 1, *shape]``."""
    return {path: leaf[:, None] for path, leaf in obs.items()} if isinstance(obs, dict) else obs[:, None]


def repeat(obs: Observed, times: int) -> Observed:
    """Observations of B rows ``times`` times one after another, ``[times * B, *shape]``."""
    if isinstance(obs, dict):
        return {path: torch.cat([leaf] * times) for path, leaf in obs.items()}
    return torch.cat([obs] * times)


class Linear(nn.Linear):
    """torch's linear layer, computed by the library that is faster on this host; see ``trainer.products``."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        return linear(features, self.weight, self.bias)


class Head(Linear):
    """A network's last layer: its outputs are float32 even under autocast, where bfloat16 rounds 100.3 to 100.5."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        device = features.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(features)
        with torch.autocast(device, enabled=False):
            return super().forward(features.float())


class Layers(nn.Module):
    """Layers one after another; inputs of any dtype count as floats."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Inputs of B rows to the outputs of the last layer."""
        return self.layers(features.float())  # type: ignore[no-any-return]


class Mlp(Layers):
    """Multi-layer perceptron, from ``[B, *in_shape]`` to ``[B, out_dim]``; observations of any shape are flattened.

    With ``normalization="layer"`` each hidden layer is normalised before its activation (arXiv:1607.06450), as in
    FastSAC. With ``"batch"`` the inputs and the outputs of each activation are normalised, as in CrossQ.

    Args:
        in_shape: shape of one observation.
        out_dim: number of outputs.
        units: width of each hidden layer.
        activation: after each hidden layer.
        normalization: of hidden layers.
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        out_dim: int,
        units: Sequence[int],
        *,
        activation: Activation = "relu",
        normalization: Normalization = "none",
    ) -> None:
        widths = [int(torch.Size(in_shape).numel()), *units]
        inputs = [BatchRenorm(widths[0])] if normalization == "batch" else []
        hidden = [layer for i, o in pairwise(widths) for layer in _hidden_layer(i, o, activation, normalization)]
        super().__init__(nn.Flatten(), *inputs, *hidden, Head(widths[-1], out_dim))


def _hidden_layer(
    n_inputs: int, n_outputs: int, activation: Activation, normalization: Normalization
) -> Iterator[nn.Module]:
    yield Linear(n_inputs, n_outputs)
    if normalization == "layer":
        yield nn.LayerNorm(n_outputs)
    yield ACTIVATIONS[activation]()
    if normalization == "batch":
        yield BatchRenorm(n_outputs)
