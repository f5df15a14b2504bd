"""Networks that value actions, and the entropy coefficient beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from common.agents.networks.blocks import LayersConfig
from common.agents.networks.layers import Observed
from common.agents.networks.returns import CategoricalReturn, QuantileReturn, ScalarReturn


class Critics(nn.Module):
    """Independent action values ``Q_i(s, a)``, each a network over features of the observation and the action.

    Args:
        n: number of critics.
        encoder: turns observations into features ``[B, F]``, for all critics.
        n_features: F.
        action_dim: size of one action.
        units: width of each hidden layer.
        layers: the settings of hidden layers.
        learnt: the form in which critics learn the return; it decides the number K of a critic's outputs.
    """

    def __init__(
        self,
        n: int,
        encoder: nn.Module,
        n_features: int,
        action_dim: int,
        units: Sequence[int],
        *,
        layers: LayersConfig | None = None,
        learnt: ScalarReturn | CategoricalReturn | QuantileReturn | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.learnt = learnt or ScalarReturn()
        make, size = (layers or LayersConfig()).build, n_features + action_dim
        self.nets = nn.ModuleList(make(size, self.learnt.n_outputs, units) for _ in range(n))

    def outputs(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Observations of B rows and actions ``[B, A]`` to the outputs of all critics, ``[N, B, K]``."""
        inputs = torch.cat((self.encoder(obs).float(), action), dim=1)
        return torch.stack([net(inputs) for net in self.nets])

    def forward(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Observations of B rows and actions ``[B, A]`` to values ``[N, B]``."""
        return self.learnt.value(self.outputs(obs, action))


class QNetworks(nn.Module):
    """Independent values of all discrete actions.

    Args:
        nets: the critics, each from observations of B rows to ``[B, A]``.
    """

    def __init__(self, nets: Iterable[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to values ``[N, B, A]``."""
        return torch.stack([net(obs) for net in self.nets])


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
