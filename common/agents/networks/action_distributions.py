"""Distributions of actions from a network's outputs. Shapes: n observations, K outputs, D dimensions of an action.

Each of them turns K outputs into random or likeliest *choices* ``[n, D]``, says how likely a choice is, and turns
choices into actions of the environment.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.agents.actions import ActionScale
from common.agents.exploring.lane_random import RowRandom
from common.data import Array
from common.errors import ConfigError


def sample_softmax(logits: torch.Tensor, generator: torch.Generator, noise: torch.Tensor | None = None) -> torch.Tensor:
    """Draw from the softmax of logits ``[n, A]`` by the Gumbel-max trick (arXiv:1611.00712): numbers ``[n]``.

    ``noise`` ``[n, A]`` is exponential with mean 1; None: drawn from the generator.

    ``torch.multinomial`` raises an error at logits that are NaN. This function does not, so a run whose policy has
    diverged goes on to its next record, and the learner's check of the record names the losses that are not finite.
    """
    if noise is None:
        noise = torch.empty(logits.shape, device=logits.device).exponential_(generator=generator)
    return (logits - noise.log()).argmax(dim=1)


class ActionDistribution(nn.Module, abc.ABC):
    """A distribution of actions for each row of a network's outputs."""

    n_outputs: int
    """K, the outputs of the network."""
    n_dims: int
    """D, the number of elements of a choice."""

    @abc.abstractmethod
    def sample(
        self, outputs: torch.Tensor, generator: torch.Generator, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Random choices: ``[n, K]`` to ``[n, D]``; ``noise`` is that of ``draw``, or None: the generator's."""

    @abc.abstractmethod
    def draw(self, rows: RowRandom) -> Array:
        """Draw the noise of random choices for n rows, ``[n, K]``."""

    @abc.abstractmethod
    def likeliest(self, outputs: torch.Tensor) -> torch.Tensor:
        """The likeliest choices: ``[n, K]`` to ``[n, D]``."""

    @abc.abstractmethod
    def log_prob(self, outputs: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities or densities of choices: ``[n, K]`` and ``[n, D]`` to ``[n]``."""

    @abc.abstractmethod
    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """The entropies in nats, ``[n, K]`` to ``[n]``."""

    @abc.abstractmethod
    def features(self, choice: torch.Tensor) -> torch.Tensor:
        """Choices ``[n, D]`` as inputs of a network, ``[n, K]`` float32: one-hot, or in ``[-1, 1]``."""

    @abc.abstractmethod
    def to_env(self, choice: torch.Tensor) -> torch.Tensor:
        """The actions ``[n, *action_shape]`` of choices ``[n, D]``, in the dtype of the action space."""


class Categoricals(ActionDistribution):
    """A softmax for each component of a Discrete or MultiDiscrete action; components are independent of each other.

    A choice is the number of each component's value, counted from 0.

    Args:
        space: of the actions.
    """

    starts: torch.Tensor

    def __init__(self, space: gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__()
        numbers = [space.n] if isinstance(space, gymnasium.spaces.Discrete) else space.nvec.flat
        self._sizes = [int(n) for n in numbers]
        starts = np.asarray(space.start, space.dtype).reshape(-1)
        self.register_buffer("starts", torch.from_numpy(starts.copy()), persistent=False)
        self._shape: tuple[int, ...] = space.shape or ()
        self.n_outputs, self.n_dims = sum(self._sizes), len(self._sizes)

    def sample(
        self, outputs: torch.Tensor, generator: torch.Generator, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        parts = self._split(outputs)
        noises = [None] * len(parts) if noise is None else self._split(noise)
        drawn = [sample_softmax(part, generator, each) for part, each in zip(parts, noises, strict=True)]
        return torch.stack(drawn, dim=1)

    def draw(self, rows: RowRandom) -> Array:
        return rows.standard_exponential(self.n_outputs)

    def likeliest(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.argmax(dim=1) for part in self._split(outputs)], dim=1)

    def log_prob(self, outputs: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        logs = [part.log_softmax(dim=1) for part in self._split(outputs)]
        found = [log.gather(1, choice[:, i : i + 1]) for i, log in enumerate(logs)]
        return torch.cat(found, dim=1).sum(dim=1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        logs = [part.log_softmax(dim=1) for part in self._split(outputs)]
        return torch.stack([-(log.exp() * log).sum(dim=1) for log in logs], dim=1).sum(dim=1)

    def features(self, choice: torch.Tensor) -> torch.Tensor:
        numbers = [torch.arange(size, device=choice.device) for size in self._sizes]
        return torch.cat([choice[:, i : i + 1] == each for i, each in enumerate(numbers)], dim=1).float()

    def to_env(self, choice: torch.Tensor) -> torch.Tensor:
        return (choice.to(self.starts.dtype) + self.starts).reshape(-1, *self._shape)

    def from_env(self, actions: torch.Tensor, is_there: torch.Tensor | None = None) -> torch.Tensor:
        """The choices ``[n, D]``, int64, of actions ``[n, *action_shape]``; 0 where ``is_there`` ``[n]`` is False."""
        choice = actions.reshape(len(actions), -1).long() - self.starts
        return choice if is_there is None else choice.masked_fill(~is_there[:, None], 0)

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(outputs, self._sizes, dim=1)


class Gaussians(ActionDistribution):
    """An independent Gaussian for each dimension of a Box action; its deviation is the same for all observations.

    A choice is any number, before it is clipped to ``[-1, 1]`` and scaled to the bounds of the space. Its density is
    that of the unclipped number, so an agent records the choice beside the action.

    Args:
        scale: between ``[-1, 1]`` and the bounds of the space.
        min_lstd: least logarithm of a standard deviation.
        max_lstd: greatest logarithm of a standard deviation.
    """

    def __init__(self, scale: ActionScale, min_lstd: float, max_lstd: float) -> None:
        super().__init__()
        self._scale, self._limits = scale, (min_lstd, max_lstd)
        self.n_outputs = self.n_dims = scale.size
        self.lstd = nn.Parameter(torch.zeros(scale.size))

    def sample(
        self, outputs: torch.Tensor, generator: torch.Generator, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        if noise is None:
            noise = torch.randn(outputs.shape, generator=generator, device=outputs.device)
        return outputs + self._lstd().exp() * noise

    def draw(self, rows: RowRandom) -> Array:
        return rows.standard_normal(self.n_dims)

    def likeliest(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs

    def log_prob(self, outputs: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        lstd = self._lstd()
        z = (choice - outputs) / lstd.exp()
        return (-0.5 * z.square() - lstd - 0.5 * math.log(2 * math.pi)).sum(dim=1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        return (self._lstd() + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(outputs.shape[0])

    def features(self, choice: torch.Tensor) -> torch.Tensor:
        return choice.clamp(-1, 1).float()

    def to_env(self, choice: torch.Tensor) -> torch.Tensor:
        return self._scale.to_env(choice.clamp(-1, 1))

    def _lstd(self) -> torch.Tensor:
        return self.lstd.clamp(*self._limits)


def make_distribution(
    agent: str, space: gymnasium.Space[Any], device: torch.device, min_lstd: float, max_lstd: float
) -> Categoricals | Gaussians:
    """Make the distribution of the actions of a space; the limits are those of ``Gaussians``.

    Raises:
        ConfigError: the space is not Discrete, MultiDiscrete or a Box of floats with finite bounds; ``agent`` is the
            agent's name, for the message.
    """
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        return Categoricals(space).to(device)
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"{agent}: expected a Discrete, MultiDiscrete or Box action space, found {space}")
    return Gaussians(ActionScale(agent, space, device), min_lstd, max_lstd).to(device)
