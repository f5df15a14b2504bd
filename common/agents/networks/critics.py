"""Networks that value actions, and the form of the return that they learn: its mean.

Shapes: N critics, B batch, K outputs of a critic. Each form defines the number of a critic's outputs, the value that
they stand for, the returns that they predict after an observation, and the loss of outputs against target returns.
``distributional_critics`` has the other forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from pydantic import Field
from torch import nn

from common.agents.losses.values import CriticLoss, critic_loss, least_value
from common.agents.networks.blocks import LayersConfig
from common.agents.networks.layers import Observed
from common.settings import Settings

if TYPE_CHECKING:
    from common.agents.networks.distributional_critics import CriticReturn


class Returns(NamedTuple):
    """Returns that may follow an observation, and their probabilities."""

    values: torch.Tensor
    """``[B]``; ``[N, B]`` if each critic has separate returns; ``[K, B]`` or ``[K, 1]`` in a distribution."""
    probability: torch.Tensor | None = None
    """``[B, K]`` or ``[N, B, K]``; None: each return is a separate target."""


class ScalarReturn(Settings):
    """Critics learn the mean of the return."""

    kind: Literal["scalar"] = Field("scalar", description="Critics predict the mean of the return.")

    @property
    def n_outputs(self) -> int:
        return 1

    def value(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values ``[N, B]`` of outputs ``[N, B, 1]``."""
        return outputs.squeeze(2)

    def following(self, outputs: torch.Tensor, *, least: bool) -> Returns:
        """The returns after the next observation, by outputs ``[N, B, 1]``: of the least critic, or of each critic."""
        return Returns(least_value(self.value(outputs)) if least else self.value(outputs))

    def expected(self, target: Returns) -> torch.Tensor:
        """The means of targets, ``[B]`` or ``[N, B]``."""
        return target.values

    def loss(
        self, outputs: torch.Tensor, target: Returns, kind: CriticLoss, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """The mean loss of outputs ``[N, B, 1]``, weighted if there are weights ``[B]``."""
        q = self.value(outputs)
        return critic_loss(kind, q, target.values.expand_as(q), weight)


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
        learnt: CriticReturn | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.learnt: CriticReturn = learnt or ScalarReturn()
        make, size = (layers or LayersConfig()).build, n_features + action_dim
        self.nets = nn.ModuleList(make(size, self.learnt.n_outputs, units) for _ in range(n))

    def outputs(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Observations of B rows and actions ``[B, A]`` to the outputs of all critics, ``[N, B, K]``."""
        inputs = torch.cat((self.encoder(obs).float(), action), dim=1)
        return torch.stack([net(inputs) for net in self.nets])

    def forward(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Observations of B rows and actions ``[B, A]`` to values ``[N, B]``."""
        return self.learnt.value(self.outputs(obs, action))
