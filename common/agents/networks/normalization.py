"""Observations with the mean 0 and the variance 1, by statistics that are gathered while the agent learns.

An agent normalises in one place, before all of its networks, so that target networks and critics see the same numbers
as the network that acts. The statistics are buffers of a module among the agent's networks: they are saved with them
and travel with the model. They change only where the learner draws a batch; acting, evaluation and export apply them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.errors import ConfigError
from common.spaces import from_columns, name_of

CLIP: Final = 10.0
"""Normalised elements are clipped to this, as in SB3's ``VecNormalize``."""
EPSILON: Final = 1e-8
"""Added to variances, so that an element that never changes becomes 0."""


class Normalizer(nn.Module):
    """Running mean and variance of each element of the observations, and the observations normalised by them.

    Batches are merged by the formula of Chan, Golub and LeVeque (Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances, 1979), so that n batches leave the mean and the variance of all of their rows. Rows
    count as often as they are drawn.

    Args:
        leaves: of the observations, by path. Those of floats are normalised; pictures, counts and choices stay.
    """

    count: torch.Tensor

    def __init__(self, leaves: LeafSpaces) -> None:
        super().__init__()
        self._dims: dict[str, int] = {}
        self._columns: dict[str, str] = {}  # The path of each column that is normalised.
        for path, leaf in leaves.items():
            if isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating):
                self._dims[path] = len(leaf.shape)
                self._columns |= {name_of(prefix, path): path for prefix in ("obs", "next_obs")}
                self.register_buffer(name_of("mean", path), torch.zeros(leaf.shape))
                self.register_buffer(name_of("var", path), torch.ones(leaf.shape))
        if self._dims:
            self.register_buffer("count", torch.zeros(()))

    @property
    def columns(self) -> Collection[str]:
        """The columns of a batch that it normalises; without any it changes nothing and has no tensors."""
        return self._columns.keys()

    def forward(self, obs: Observed) -> Observed:
        """Observations of B rows, ``[B, *shape]`` or ``[B, T, *shape]``, normalised as float32; nothing is learnt."""
        if isinstance(obs, dict):
            return {path: self._normalized(path, leaf) for path, leaf in obs.items()}
        return self._normalized("", obs)

    def normalize(self, columns: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The columns of a batch, those of observations and next observations normalised."""
        return {
            name: self._normalized(self._columns[name], column) if name in self._columns else column
            for name, column in columns.items()
        }

    @torch.no_grad()
    def merge(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Merge the observations of a batch, columns ``obs`` or ``obs/…`` ``[B, *shape]``, into the statistics."""
        if not self._dims:
            return
        obs = from_columns("obs", columns)
        for path, dims in self._dims.items():
            leaf = (obs[path] if path else obs).float()
            rows = leaf.flatten(0, leaf.dim() - dims - 1)  # [R, *shape]
            share = len(rows) / (self.count + len(rows))
            mean, var = self._statistics(path)
            var_of_rows, mean_of_rows = torch.var_mean(rows, dim=0, correction=0)
            gap = mean_of_rows - mean
            var.lerp_(var_of_rows, share).add_(gap.square() * (share * (1 - share)))
            mean.add_(gap * share)
        self.count.add_(len(rows))

    def _normalized(self, path: str, leaf: torch.Tensor) -> torch.Tensor:
        if path not in self._dims:
            return leaf
        mean, var = self._statistics(path)
        return ((leaf.float() - mean) * (var + EPSILON).rsqrt()).clamp(-CLIP, CLIP)

    def _statistics(self, path: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.get_buffer(name_of("mean", path)), self.get_buffer(name_of("var", path))


def build_normalizer(leaves: LeafSpaces, *, enabled: bool) -> Normalizer:
    """Make the normaliser of observations; one that is not enabled changes nothing and has no tensors.

    Raises:
        ConfigError: it is enabled, but no leaf has floats.
    """
    normalizer = Normalizer(leaves if enabled else {})
    if enabled and not normalizer.columns:
        found = ", ".join(str(leaf) for leaf in leaves.values())
        raise ConfigError(f"agent.params.normalize_observations: expected observations of floats, found {found}")
    return normalizer
