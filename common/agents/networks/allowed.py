"""Keeps actions that are not allowed from being chosen; see ``common.action_masks``. Shapes: A outputs of a network."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from common.action_masks import find_masks
from common.agents.networks.encoders import LeafSpaces, select_leaves
from common.agents.networks.layers import Observed
from common.interfaces import EnvSpec

NOT_ALLOWED: Final = -1e20
"""The output of an action that is not allowed. Its probability is exactly 0, and it is finite: 0 times it is 0."""


class AllowedActions(nn.Module):
    """Gives the outputs of actions that are not allowed the value ``NOT_ALLOWED``, so that they are never chosen.

    It has no parameters. Where nothing is allowed, as after the last action of an episode, outputs stay as they are.

    Args:
        spec: with a mask in its observations, or without: then it changes nothing.
        joint: the number of each component's value in each joint action of a MultiDiscrete space, ``[A, k]``, counted
            from 0; None: there are outputs for the values of each component, one component after another.

    Raises:
        ConfigError: the mask does not fit the action space.
    """

    places: torch.Tensor | None  # [A, k], the elements of the mask that must all be 1 for each joint action.

    def __init__(self, spec: EnvSpec, joint: torch.Tensor | None = None) -> None:
        super().__init__()
        masks = find_masks(spec)
        self._paths = masks.paths if masks is not None else ()
        leaves = select_leaves(spec.observation_space)
        self.leaves: LeafSpaces = {path: leaf for path, leaf in leaves.items() if path not in self._paths}
        """The leaves that networks see: all but the mask."""
        places = None
        if masks is not None and joint is not None and len(masks.sizes) > 1:
            places = joint + torch.tensor([sum(masks.sizes[:i]) for i in range(len(masks.sizes))])
        self.register_buffer("places", places, persistent=False)
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
        return allowed | ~allowed.any(dim=-1, keepdim=True)

    def forward(self, outputs: torch.Tensor, obs: Observed) -> torch.Tensor:
        """Outputs ``[..., A]`` for observations, those of actions that are not allowed replaced."""
        return outputs.masked_fill(~self.read(obs), NOT_ALLOWED) if self._paths else outputs

    def over(self, net: nn.Module) -> nn.Module:
        """The network that gives the outputs of ``net`` for observations, with those replaced."""
        return Obeying(net, self) if self._paths else net


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
