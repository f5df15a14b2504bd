"""Noise that is a function of the observation (generalised state-dependent exploration, arXiv:2005.05719).

White noise shakes a robot; noise that is the same for the same observation moves it smoothly. The noise on the actions
is ``z(s) W``, with features ``z(s)`` ``[F]`` of the policy and a random matrix ``W`` ``[F, A]`` that changes slowly.
Over all matrices it is Gaussian with the variance ``z(s)^2 std^2``, and this is the policy that SAC learns.
"""

from __future__ import annotations

import torch
from pydantic import Field, PositiveInt
from torch import nn

from common.agents.exploring.noise import OrnsteinUhlenbeckNoise
from common.agents.networks.layers import Head, Observed, undecayed
from common.settings import Settings

EPSILON = 1e-6
"""Added to variances before their logarithm is taken."""


class StateDependentNoise(Settings):
    """Settings of state-dependent noise."""

    features: PositiveInt = Field(
        64, description="The number of the policy's features from which the noise is computed, as a linear function."
    )
    interval: PositiveInt = Field(
        8, description="The number of steps over which the noise function changes into another one."
    )
    initial_lstd: float = Field(
        -2.0, description="The logarithm of the standard deviation of each weight before training."
    )

    def process(self) -> OrnsteinUhlenbeckNoise:
        """How a matrix of weights changes, in units of their standard deviation.

        The paper draws a new matrix every ``interval`` steps. Here the matrix drifts, so that actions do not jerk.
        """
        return OrnsteinUhlenbeckNoise(std=1.0, theta=1 / self.interval)


class StateDependentActor(nn.Module):
    """A Gaussian policy whose standard deviation depends on the observation through the features of its means.

    Args:
        body: turns observations of B rows into ``[B, F]``; its tanh is the features.
        n_dims: dimensions of an action, A.
        config: has the number of features.
    """

    def __init__(self, body: nn.Module, n_dims: int, config: StateDependentNoise) -> None:
        super().__init__()
        self.body, self.mean = body, Head(config.features, n_dims)
        self.lstd = undecayed(torch.full((config.features, n_dims), config.initial_lstd))

    def forward(self, obs: Observed) -> torch.Tensor:
        """Means and logarithms of standard deviations, before tanh: observations of B rows to ``[B, 2 A]``."""
        features = self._features(obs)
        return torch.cat((self.mean(features), self._variance(features).log() / 2), dim=1)

    def noise(self, obs: Observed, weights: torch.Tensor) -> torch.Tensor:
        """The noise on the actions in units of its standard deviation, ``[n, A]``.

        Args:
            obs: of n rows.
            weights: standard normal, ``[n, F * A]``.
        """
        features = self._features(obs)
        matrices = weights.view(len(weights), *self.lstd.shape) * self.lstd.exp()
        return torch.einsum("nf,nfa->na", features, matrices) / self._variance(features).sqrt()

    def _features(self, obs: Observed) -> torch.Tensor:
        features: torch.Tensor = self.body(obs).tanh()
        return features

    def _variance(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, A]``. The features learn from the means alone, as in the paper's code."""
        return features.detach().square() @ (2 * self.lstd).exp() + EPSILON
