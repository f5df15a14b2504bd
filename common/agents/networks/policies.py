"""Policies as modules. Shapes: n or B observations, A actions or their dimensions.

``LikeliestAction`` gives actions as the environment takes them, for acting and export, as ``GreedyQ`` of
``discrete_actions`` and ``GreedyActor`` of ``box_actions`` do.
``GaussianPolicy`` and ``CategoricalPolicy`` are random and give log-probabilities, for learning.
``PolicyAndBaseline`` and ``PolicyBesideBaseline`` value observations too.
``make_orthogonal`` is how the weights of policies that are learnt by their gradient begin.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field, model_validator
from torch import nn

from common.agents.machinery.optimizers import limited
from common.agents.networks.action_distributions import ActionDistribution, gaussian_log_prob, sample_softmax
from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.layers import Observed
from common.settings import Settings


class GaussianConfig(Settings):
    """Limits of a Gaussian policy's standard deviation."""

    min_lstd: float = Field(
        -5.0, description="The least logarithm of the policy's standard deviation, for Box actions."
    )
    max_lstd: float = Field(
        2.0, description="The greatest logarithm of the policy's standard deviation, for Box actions."
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> GaussianConfig:
        if self.min_lstd > self.max_lstd:
            raise ValueError(f"min_lstd ({self.min_lstd}) is above max_lstd ({self.max_lstd})")
        return self


class GaussianPolicy(nn.Module):
    """A Gaussian around tanh of a network; its standard deviation is learnt, the same for all observations.

    It is not squashed, as in the code of the authors of AWAC and IQL: a squashed Gaussian has no finite likelihood at
    -1 and 1, where actions in data often are. Random actions are clipped to ``[-1, 1]``.

    Args:
        mean: turns B observations into means before tanh ``[B, A]``.
        n_dims: dimensions of an action, A.
        limits: of the standard deviation.
    """

    def __init__(self, mean: nn.Module, n_dims: int, limits: GaussianConfig) -> None:
        super().__init__()
        self.mean = mean
        self._limits = limits.min_lstd, limits.max_lstd
        self.lstd = limited(torch.zeros(n_dims), *self._limits)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Means before tanh: B observations to ``[B, A]``."""
        return self.mean(obs)  # type: ignore[no-any-return]

    def greedy(self, obs: Observed) -> torch.Tensor:
        """The likeliest actions: B observations to ``[B, A]`` in ``[-1, 1]``."""
        return self.forward(obs).tanh()

    def sample(self, obs: Observed, generator: torch.Generator, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Random actions: B observations to ``[B, A]`` in ``[-1, 1]``; ``noise`` ``[B, A]`` is standard normal."""
        mean = self.greedy(obs)
        if noise is None:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return (mean + self._lstd().exp() * noise).clamp(-1, 1)

    def log_prob(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Logarithm of the density of actions ``[B, A]``, ``[B]``."""
        return gaussian_log_prob(action, self.greedy(obs), self._lstd())

    def _lstd(self) -> torch.Tensor:
        return self.lstd.clamp(*self._limits)


class CategoricalPolicy(nn.Module):
    """Softmax over the outputs of a network.

    Args:
        logits: turns B observations into ``[B, A]``.
        allowed: which of the A actions are.
    """

    def __init__(self, logits: nn.Module, allowed: AllowedActions) -> None:
        super().__init__()
        self.logits, self._allowed = logits, allowed

    def forward(self, obs: Observed) -> torch.Tensor:
        """Logits: B observations to ``[B, A]``."""
        return self._allowed(self.logits(obs), obs)  # type: ignore[no-any-return]

    def sample(self, obs: Observed, generator: torch.Generator, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Random actions: B observations to ``[B]``, counted from 0; ``noise`` is that of ``sample_softmax``."""
        return sample_softmax(self.forward(obs), generator, noise)

    def log_prob(self, obs: Observed, action: torch.Tensor) -> torch.Tensor:
        """Logarithm of the probability of actions ``[B]``, ``[B]``, among all actions: data may hold any of them."""
        log_prob: torch.Tensor = self.logits(obs).log_softmax(dim=1).gather(1, action[:, None]).squeeze(1)
        return log_prob


class PolicyAndBaseline(nn.Module):
    """The outputs that a distribution of actions takes, and a value, by one network; they part in its last layer only.

    Args:
        net: turns B observations into ``[B, K + 1]``, the value last.
        actions: takes K outputs.
        allowed: which of the K values of components are; None: all.
    """

    def __init__(self, net: nn.Module, actions: ActionDistribution, allowed: AllowedActions | None = None) -> None:
        super().__init__()
        self.net, self.actions, self._allowed = net, actions, allowed

    def forward(self, obs: Observed, *, valued: bool = True) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        """Observations of B rows to the distribution's outputs ``[B, K]`` and values ``[B]``, in any case."""
        outputs = self.net(obs)
        return _obey(self._allowed, outputs[:, :-1], obs), outputs[:, -1]


class PolicyBesideBaseline(nn.Module):
    """As ``PolicyAndBaseline``, by two networks that share no layers.

    Args:
        policy: turns B observations into ``[B, K]``.
        baseline: turns B observations into ``[B, 1]``.
        actions: takes K outputs.
        allowed: which of the K values of components are; None: all.
    """

    def __init__(
        self,
        policy: nn.Module,
        baseline: nn.Module,
        actions: ActionDistribution,
        allowed: AllowedActions | None = None,
    ) -> None:
        super().__init__()
        self.policy, self.baseline, self.actions, self._allowed = policy, baseline, actions, allowed

    def forward(self, obs: Observed, *, valued: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Observations of B rows to the distribution's outputs ``[B, K]`` and values ``[B]``.

        If they need not be ``valued``, they need no leaves that only the baseline sees, and there are no values.
        """
        outputs = _obey(self._allowed, self.policy(obs), obs)
        return outputs, self.baseline(obs)[:, 0] if valued else None


def _obey(allowed: AllowedActions | None, outputs: torch.Tensor, obs: Observed) -> torch.Tensor:
    return outputs if allowed is None else allowed(outputs, obs)


class LikeliestAction(nn.Module):
    """Takes the likeliest action of a policy.

    Args:
        policy: a ``PolicyAndBaseline`` or ``PolicyBesideBaseline``, whose values are not used.
        actions: takes the policy's outputs.
    """

    def __init__(self, policy: nn.Module, actions: ActionDistribution) -> None:
        super().__init__()
        self.policy, self.actions = policy, actions

    def forward(self, obs: Observed) -> Observed:
        """Observations of n rows to actions ``[n, *action_shape]``, of a Dict or Tuple space a dict by path."""
        return self.actions.to_env(self.actions.likeliest(self.policy(obs, valued=False)[0]))


def make_orthogonal(net: nn.Module, *gains: float) -> None:
    """Give the layers of a network orthogonal weights (arXiv:1312.6120) of gain ``sqrt(2)``, and biases of 0.

    A policy that is learnt by its gradient begins so (arXiv:2005.12729, section 3): by a small gain of its last layer,
    all actions are about as likely.

    Args:
        net: changed in place.
        gains: one for all outputs of the last layer, or a second one for the last output.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    outputs = layers[-1].weight
    sizes = [len(outputs)] if len(gains) == 1 else [len(outputs) - 1, 1]
    for rows, gain in zip(torch.split(outputs.detach(), sizes), gains, strict=True):
        nn.init.orthogonal_(rows, gain)
