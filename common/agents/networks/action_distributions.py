"""Distributions of actions from a network's outputs. Shapes: n observations, K outputs, D dimensions of an action.

Each of them turns K outputs into random or likeliest *choices* ``[n, D]``, says how likely a choice is, and turns
choices into actions of the environment.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.agents.machinery.lane_states import RowRandom
from common.agents.machinery.optimizers import limited
from common.agents.networks.box_actions import ActionScale
from common.agents.networks.layers import Observed
from common.data import Array
from common.domain import Domain
from common.errors import ConfigError
from common.spaces import leaves_of


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
    domain: Domain | None = None
    """The values of a recorded choice; None: any number."""

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
    def to_env(self, choice: torch.Tensor) -> Observed:
        """The actions ``[n, *action_shape]`` of choices ``[n, D]``, in the dtypes of the action space.

        For a Dict or Tuple space it gives a dict with the actions of each leaf by path.
        """


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
        self.sizes = [int(n) for n in numbers]
        starts = np.asarray(space.start, space.dtype).reshape(-1)
        self.register_buffer("starts", torch.from_numpy(starts.copy()), persistent=False)
        self._shape: tuple[int, ...] = space.shape or ()
        self.n_outputs, self.n_dims = sum(self.sizes), len(self.sizes)

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
        numbers = [torch.arange(size, device=choice.device) for size in self.sizes]
        return torch.cat([choice[:, i : i + 1] == each for i, each in enumerate(numbers)], dim=1).float()

    def to_env(self, choice: torch.Tensor) -> torch.Tensor:
        return (choice.to(self.starts.dtype) + self.starts).reshape(-1, *self._shape)

    def from_env(self, actions: torch.Tensor, is_there: torch.Tensor | None = None) -> torch.Tensor:
        """The choices ``[n, D]``, int64, of actions ``[n, *action_shape]``; 0 where ``is_there`` ``[n]`` is False."""
        choice = actions.reshape(len(actions), -1).long() - self.starts
        return choice if is_there is None else choice.masked_fill(~is_there[:, None], 0)

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(outputs, self.sizes, dim=1)


def gaussian_log_prob(action: torch.Tensor, mean: torch.Tensor, lstd: torch.Tensor) -> torch.Tensor:
    """Logarithms of the densities of actions ``[n, D]`` around means ``[n, D]``, for ``lstd`` ``[D]``: ``[n]``."""
    z = (action - mean) / lstd.exp()
    return (-0.5 * z.square() - lstd - 0.5 * math.log(2 * math.pi)).sum(dim=1)


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
        self.lstd = limited(torch.zeros(scale.size), min_lstd, max_lstd)

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
        return gaussian_log_prob(choice, outputs, self._lstd())

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        return (self._lstd() + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(outputs.shape[0])

    def features(self, choice: torch.Tensor) -> torch.Tensor:
        return choice.clamp(-1, 1).float()

    def to_env(self, choice: torch.Tensor) -> torch.Tensor:
        return self._scale.to_env(choice.clamp(-1, 1))

    def _lstd(self) -> torch.Tensor:
        return self.lstd.clamp(*self._limits)


class LeafDistributions(ActionDistribution):
    """Independent distributions of the leaves of a Dict or Tuple action.

    Outputs, choices and noise are those of the leaves, one leaf after another. A choice is float32: it holds numbers of
    discrete values beside numbers of any size, so an agent records it beside the action.

    Args:
        leaves: the distribution of each leaf by its path.
    """

    def __init__(self, leaves: Mapping[str, Categoricals | Gaussians]) -> None:
        super().__init__()
        self._leaves = dict(leaves)
        self.leaves = nn.ModuleList(leaves.values())  # torch finds parameters here: the keys of its dicts have no dots.
        self._n_outputs = [leaf.n_outputs for leaf in leaves.values()]
        self._n_dims = [leaf.n_dims for leaf in leaves.values()]
        self.n_outputs, self.n_dims = sum(self._n_outputs), sum(self._n_dims)
        low, high = (np.concatenate(ends) for ends in zip(*map(_ends, leaves.values()), strict=True))
        self.domain = Domain.between(low, high, np.float32)

    def sample(
        self, outputs: torch.Tensor, generator: torch.Generator, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        parts = self._split(outputs)
        noises = [None] * len(parts) if noise is None else self._split(noise)
        each = zip(self._leaves.values(), parts, noises, strict=True)
        return torch.cat([leaf.sample(part, generator, drawn).float() for leaf, part, drawn in each], dim=1)

    def draw(self, rows: RowRandom) -> Array:
        noise: Array = np.concatenate([leaf.draw(rows) for leaf in self._leaves.values()], axis=1)
        return noise

    def likeliest(self, outputs: torch.Tensor) -> torch.Tensor:
        each = zip(self._leaves.values(), self._split(outputs), strict=True)
        return torch.cat([leaf.likeliest(part).float() for leaf, part in each], dim=1)

    def log_prob(self, outputs: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        each = zip(self._leaves.values(), self._split(outputs), self._choices(choice), strict=True)
        return torch.stack([leaf.log_prob(part, chosen) for leaf, part, chosen in each], dim=1).sum(dim=1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        each = zip(self._leaves.values(), self._split(outputs), strict=True)
        return torch.stack([leaf.entropy(part) for leaf, part in each], dim=1).sum(dim=1)

    def features(self, choice: torch.Tensor) -> torch.Tensor:
        each = zip(self._leaves.values(), self._choices(choice), strict=True)
        return torch.cat([leaf.features(chosen) for leaf, chosen in each], dim=1)

    def to_env(self, choice: torch.Tensor) -> dict[str, torch.Tensor]:
        each = zip(self._leaves.items(), self._choices(choice), strict=True)
        return {path: leaf.to_env(chosen) for (path, leaf), chosen in each}

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(outputs, self._n_outputs, dim=1)

    def _choices(self, choice: torch.Tensor) -> list[torch.Tensor]:
        """The choices of each leaf, those of discrete leaves as int64."""
        each = zip(self._leaves.values(), torch.split(choice, self._n_dims, dim=1), strict=True)
        return [chosen.long() if isinstance(leaf, Categoricals) else chosen for leaf, chosen in each]


def _ends(leaf: Categoricals | Gaussians) -> tuple[Array, Array]:
    """The least and the greatest choice of each dimension of a leaf, ``[D]``."""
    if isinstance(leaf, Categoricals):
        return np.zeros(leaf.n_dims), np.array(leaf.sizes, np.float64) - 1
    return np.full(leaf.n_dims, -np.inf), np.full(leaf.n_dims, np.inf)


def make_distribution(
    agent: str, space: gymnasium.Space[Any], device: torch.device, min_lstd: float, max_lstd: float
) -> Categoricals | Gaussians | LeafDistributions:
    """Make the distribution of the actions of a space; the limits are those of ``Gaussians``.

    Raises:
        ConfigError: the space, or a leaf of a Dict or Tuple space, is not Discrete, MultiDiscrete or a Box of floats
            with finite bounds; ``agent`` is the agent's name, for the message.
    """

    def make(where: str, leaf: gymnasium.Space[Any]) -> Categoricals | Gaussians:
        if isinstance(leaf, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
            return Categoricals(leaf)
        if not isinstance(leaf, gymnasium.spaces.Box):
            raise ConfigError(
                f"{where}: expected a Discrete, MultiDiscrete or Box action space, or a Dict or Tuple of them, found "
                f"{leaf}"
            )
        return Gaussians(ActionScale(where, leaf, device), min_lstd, max_lstd)

    if not isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return make(agent, space).to(device)
    leaves = {path: make(f"{agent}: action leaf '{path}'", leaf) for path, leaf in leaves_of(space).items()}
    return LeafDistributions(leaves).to(device)
