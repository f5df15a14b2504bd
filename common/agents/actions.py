"""Actions as networks see them: continuous actions in ``[-1, 1]``, and the numbers of discrete actions."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.agents.networks.layers import Observed
from common.data import Array
from common.errors import ConfigError


class GreedyQ(nn.Module):
    """Takes the action of the highest value.

    Args:
        qnet: n observations to values ``[n, A]``.
        actions: the environment's action for each value, ``[A, *action_shape]``.
    """

    actions: torch.Tensor

    def __init__(self, qnet: nn.Module, actions: torch.Tensor) -> None:
        super().__init__()
        self.qnet = qnet
        self.register_buffer("actions", actions)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of n rows to actions ``[n, *action_shape]``."""
        return self.actions[self.qnet(obs).argmax(dim=1)]


class GreedyActor(nn.Module):
    """Takes tanh of the first ``A`` of an actor's outputs: the means of a Gaussian policy, or all outputs."""

    def __init__(self, actor: nn.Module, scale: ActionScale) -> None:
        super().__init__()
        self.actor, self._scale = actor, scale

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of n rows to actions ``[n, *action_shape]``."""
        return self._scale.to_env(self.actor(obs)[:, : self._scale.size].tanh())


MAX_JOINT_ACTIONS = 4096
"""The greatest number of joint actions; a value network has an output for each."""


class ActionScale:
    """The affine map between ``[-1, 1]`` and a Box action space, both ways.

    Items hold actions as the environment takes them; critics and losses see them in ``[-1, 1]`` only, so that entropies
    and noise mean the same for every environment.

    Raises:
        ConfigError: the space is no Box of floats, or a dimension has no finite bounds or no width.
    """

    def __init__(self, agent: str, space: gymnasium.Space[Any], device: torch.device) -> None:
        if not (isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating)):
            raise ConfigError(f"{agent}: expected a Box action space of floats, found {space}{_advise(space)}")
        if not (np.isfinite(space.low) & np.isfinite(space.high) & (space.low < space.high)).all():
            raise ConfigError(f"{agent}: expected an action space with finite bounds, low below high, found {space}")
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


class ActionIndex:
    """The map between discrete actions and their numbers ``0 … n - 1``, both ways.

    Items hold actions as the environment takes them; networks have one output for each number. The actions of a
    MultiDiscrete space are numbered jointly, as ``np.ravel_multi_index`` does: the last component runs fastest.

    Raises:
        ConfigError: the space has another type, or is MultiDiscrete and has more than ``MAX_JOINT_ACTIONS`` actions.
    """

    def __init__(self, agent: str, space: gymnasium.Space[Any], device: torch.device) -> None:
        if isinstance(space, gymnasium.spaces.Discrete):
            sizes, starts = [int(space.n)], np.array(space.start)
        elif isinstance(space, gymnasium.spaces.MultiDiscrete):
            sizes, starts = [int(n) for n in space.nvec.flat], space.start
            if math.prod(sizes) > MAX_JOINT_ACTIONS:
                raise ConfigError(
                    f"{agent}: expected at most {MAX_JOINT_ACTIONS} joint actions, found {math.prod(sizes)} in {space}"
                )
        else:
            raise ConfigError(
                f"{agent}: expected a Discrete or MultiDiscrete action space, found {space}{_advise(space)}"
            )
        self.size = math.prod(sizes)
        components = np.stack(np.unravel_index(np.arange(self.size), sizes), axis=1)  # [n, k]
        self.components = torch.from_numpy(components)
        """The value of each component in each action, counted from 0, ``[n, k]``."""
        self.table: Array = (components.reshape(self.size, *starts.shape) + starts).astype(space.dtype)
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        self._are_numbers = len(sizes) == 1 and not starts.any()
        self._starts = torch.from_numpy(starts.reshape(-1)).to(device)  # [k]
        self._strides = torch.tensor(strides, device=device)  # [k]

    def to_env(self, index: Array) -> Array:
        """The actions of numbers ``[n]`` as the environment takes them: ``[n, *action_shape]``."""
        actions: Array = self.table[index]
        return actions

    def from_env(self, actions: torch.Tensor) -> torch.Tensor:
        """The numbers ``[B]``, int64, of the environment's actions ``[B, *action_shape]``."""
        if self._are_numbers:
            return actions.reshape(-1).long()
        return ((actions.reshape(len(actions), -1).long() - self._starts) * self._strides).sum(dim=1)


def _advise(space: gymnasium.Space[Any]) -> str:
    """What to do about a structured space of actions, for messages."""
    is_structured = isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
    return "; PPO, RecurrentPPO and IMPALA act in Dict and Tuple spaces" if is_structured else ""
