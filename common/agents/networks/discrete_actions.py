"""Discrete actions as networks see them: which are allowed, see ``common.action_masks``, and their numbers.

Shapes: A outputs of a network.
"""

from __future__ import annotations

import math
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from torch import nn

from common.action_masks import component_sizes, discrete_leaves, find_masks
from common.agents.networks.encoders import LeafSpaces, select_leaves
from common.agents.networks.layers import Observed
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.spaces import leaves_of

NOT_ALLOWED: Final = -(2.0**66)
"""The output of an action that is not allowed. Its probability is exactly 0, and it is finite: 0 times it is 0.

float32 and bfloat16 hold it exactly, so that outputs may be compared with it."""


class AllowedActions(nn.Module):
    """Gives the outputs of actions that are not allowed the value ``NOT_ALLOWED``, so that they are never chosen.

    It has no parameters. Where nothing is allowed, as after the last action of an episode, outputs stay as they are.

    Args:
        spec: with a mask in its observations, or without: then it changes nothing.
        joint: the number of each component's value in each joint action of a MultiDiscrete space, ``[A, k]``, counted
            from 0; None: there are outputs for the values of each component, one component after another, and of a Dict
            or Tuple space for each element of a Box leaf in its place.

    Raises:
        ConfigError: the mask does not fit the action space.
    """

    places: torch.Tensor | None
    """The elements of the mask that must all be 1 for each output, ``[A, k]``; None: element i is about output i."""
    free: torch.Tensor | None
    """The outputs to which no element of the mask belongs, those of Box leaves, ``[A]`` bool; None: there are none."""

    def __init__(self, spec: EnvSpec, joint: torch.Tensor | None = None) -> None:
        super().__init__()
        masks = find_masks(spec)
        self._paths = masks.paths if masks is not None else ()
        leaves = select_leaves(spec.observation_space)
        self.leaves: LeafSpaces = {path: leaf for path, leaf in leaves.items() if path not in self._paths}
        """The leaves that networks see: all but the mask."""
        places = free = None
        if masks is not None and joint is not None and len(masks.sizes) > 1:
            places = joint + torch.tensor([sum(masks.sizes[:i]) for i in range(len(masks.sizes))])
        elif masks is not None and joint is None:
            is_free = torch.tensor(_find_free(spec.action_space))
            if is_free.any():
                free, places = is_free, ((~is_free).cumsum(0) - 1).clamp(min=0)[:, None]
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("free", free, persistent=False)
        self._has_frames = any(len(leaves[path].shape or ()) == 2 for path in self._paths)

    @property
    def has_mask(self) -> bool:
        return bool(self._paths)

    def read(self, obs: Observed) -> torch.Tensor:
        """Whether each action is allowed, ``[..., A]`` bool; only with a mask. Where nothing is, everything counts."""
        assert isinstance(obs, dict), "observations with a mask are structured"
        parts = [obs[path][..., -1, :] if self._has_frames else obs[path] for path in self._paths]
        allowed = (torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]).bool()
        if self.places is not None:
            allowed = allowed[..., self.places].all(dim=-1)
        allowed = allowed | ~allowed.any(dim=-1, keepdim=True)
        return allowed if self.free is None else allowed | self.free

    def forward(self, outputs: torch.Tensor, obs: Observed) -> torch.Tensor:
        """Outputs ``[..., A]`` for observations, those of actions that are not allowed replaced."""
        return outputs.masked_fill(~self.read(obs), NOT_ALLOWED) if self._paths else outputs

    def over(self, net: nn.Module) -> nn.Module:
        """The network that gives the outputs of ``net`` for observations, with those replaced."""
        return Obeying(net, self) if self._paths else net


def _find_free(actions: gymnasium.Space[Any]) -> list[bool]:
    """Whether each output of a policy belongs to a Box leaf of the action space, so that no mask is about it."""
    discrete = discrete_leaves(actions)
    found: list[bool] = []
    for path, leaf in leaves_of(actions).items():
        n = math.prod(leaf.shape or ()) if path not in discrete else sum(component_sizes(discrete[path]))
        found += [path not in discrete] * n
    return found


class Obeying(nn.Module):
    """A network of action values that obeys masks.

    Args:
        net: observations of B rows to ``[B, A]``.
        allowed: which of the A actions are.
    """

    def __init__(self, net: nn.Module, allowed: AllowedActions) -> None:
        super().__init__()
        self.net, self.allowed = net, allowed

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, A]``."""
        return self.allowed(self.net(obs), obs)  # type: ignore[no-any-return]


MAX_JOINT_ACTIONS = 4096
"""The greatest number of joint actions; a value network has an output for each."""


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
                f"{agent}: expected a Discrete or MultiDiscrete action space, found {space}{advise_on(space)}"
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


def advise_on(space: gymnasium.Space[Any]) -> str:
    """What to do about a structured space of actions, for messages."""
    is_structured = isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
    return "; PPO, RecurrentPPO and IMPALA act in Dict and Tuple spaces" if is_structured else ""
