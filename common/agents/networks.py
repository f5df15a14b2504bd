"""Networks; a user's own is any callable ``module:attr`` that returns a ``torch.nn.Module``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.config import PluginConfig
from common.data import Array
from common.errors import PluginError


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
        self.layers = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` to ``[B, out_dim]``."""
        return self.layers(obs.float())  # type: ignore[no-any-return]


def build_network(network: PluginConfig, observations: gymnasium.Space[Any], out_dim: int) -> nn.Module:
    """Build a user's network by ``target(in_shape=…, out_dim=…, **params)`` and see that it is one.

    It turns observations ``[B, *in_shape]``, in the dtype of their space, into floats ``[B, out_dim]``. It is kept in
    torch's eval mode, so that acting and learning see the same function: dropout does nothing in it.

    Raises:
        PluginError: the target cannot be loaded, does not take these arguments, or is no such network.
        ConfigError: a parameter is unknown or missing.
    """
    where = "agent.params.network"
    network.check(where, frozenset({"in_shape", "out_dim"}))
    built = network.build(in_shape=observations.shape, out_dim=out_dim)
    if not isinstance(built, nn.Module):
        raise PluginError(f"{where}: expected a torch.nn.Module, found {type(built).__name__}")
    blank: Array = np.zeros((2, *(observations.shape or ())), observations.dtype)
    with torch.no_grad():
        outputs = built.eval()(torch.from_numpy(blank))
    if tuple(outputs.shape) != (2, out_dim) or not outputs.is_floating_point():
        raise PluginError(
            f"{where}: {network.target} must turn observations [2, *{list(blank.shape[1:])}] into floats "
            f"[2, {out_dim}], found {outputs.dtype} {list(outputs.shape)}"
        )
    return built


class GreedyQ(nn.Module):
    """The policy that takes the action of the highest value.

    Args:
        qnet: observations ``[n, *shape]`` to values ``[n, A]``.
        actions: what the environment takes for each of them, ``[A, *action_shape]``.
    """

    actions: torch.Tensor

    def __init__(self, qnet: nn.Module, actions: torch.Tensor) -> None:
        super().__init__()
        self.qnet = qnet
        self.register_buffer("actions", actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[n, *shape]`` to actions ``[n, *action_shape]`` as the environment takes them."""
        return self.actions[self.qnet(obs).argmax(dim=1)]


class Critics(nn.Module):
    """Independent action values ``Q_i(s, a)``, each an ``Mlp`` over the observation and the action.

    Args:
        n: number of critics.
        obs_shape: shape of one observation.
        action_dim: size of one action.
        units: width of each hidden layer.
    """

    def __init__(self, n: int, obs_shape: Sequence[int], action_dim: int, units: Sequence[int]) -> None:
        super().__init__()
        inputs = torch.Size(obs_shape).numel() + action_dim
        self.nets = nn.ModuleList(Mlp((inputs,), 1, units) for _ in range(n))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """``[B, *obs_shape]`` and ``[B, A]`` to ``[N, B]``."""
        inputs = torch.cat((obs.flatten(1).float(), action), dim=1)
        return torch.stack([net(inputs).squeeze(1) for net in self.nets])


class EntropyCoef(nn.Module):
    """SAC's entropy coefficient, kept as its logarithm so that it stays positive.

    Args:
        initial: its first value.
        learned: whether it may change.
    """

    def __init__(self, initial: float, *, learned: bool) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)), requires_grad=learned)

    def forward(self) -> torch.Tensor:
        """The coefficient, a scalar."""
        return self.log.exp()
