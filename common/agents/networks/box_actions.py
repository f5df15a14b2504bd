"""Continuous actions as networks see them, in ``[-1, 1]``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.agents.networks.discrete_actions import advise_on
from common.agents.networks.layers import Observed
from common.errors import ConfigError


class GreedyActor(nn.Module):
    """Takes tanh of the first ``A`` of an actor's outputs: the means of a Gaussian policy, or all outputs."""

    def __init__(self, actor: nn.Module, scale: ActionScale) -> None:
        super().__init__()
        self.actor, self._scale = actor, scale

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of n rows to actions ``[n, *action_shape]``."""
        return self._scale.to_env(self.actor(obs)[:, : self._scale.size].tanh())


class ActionScale:
    """The affine map between ``[-1, 1]`` and a Box action space, both ways.

    Items hold actions as the environment takes them; critics and losses see them in ``[-1, 1]`` only, so that entropies
    and noise mean the same for every environment.

    Raises:
        ConfigError: the space is no Box of floats, or a dimension has no finite bounds or no finite width.
    """

    def __init__(self, agent: str, space: gymnasium.Space[Any], device: torch.device) -> None:
        if not (isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)):
            raise ConfigError(f"{agent}: expected a Box action space of floats, found {space}{advise_on(space)}")
        with np.errstate(over="ignore", invalid="ignore"):
            width = space.high - space.low  # Not finite if a bound is not, or if the bounds are too far apart.
        if not (np.isfinite(width) & (width > 0)).all():
            raise ConfigError(
                f"{agent}: expected an action space with finite bounds, low below high, whose distance its dtype can "
                f"hold; found {space}"
            )
        self.size = int(np.prod(space.shape, dtype=np.int64))
        self._shape = space.shape
        self._low, self._high = (torch.from_numpy(end.reshape(-1)).to(device) for end in (space.low, space.high))
        self._width = self._high - self._low

    def to_env(self, unit: torch.Tensor) -> torch.Tensor:
        """Actions ``[n, A]`` in ``[-1, 1]`` as the environment takes them: ``[n, *action_shape]``, in bounds."""
        share = (unit.to(self._low.dtype) + 1) / 2
        actions = (self._low + share * self._width).clamp(self._low, self._high)  # Rounding may overstep the bounds.
        return actions.reshape(-1, *self._shape)

    def from_env(self, actions: torch.Tensor) -> torch.Tensor:
        """The environment's actions ``[B, *action_shape]`` as ``[B, A]`` in ``[-1, 1]``, float32."""
        return ((actions.reshape(-1, self.size) - self._low) / self._width * 2 - 1).float()
