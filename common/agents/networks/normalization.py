"""Observations of mean 0 and variance 1, and rewards of one size, by statistics gathered while an agent learns.

An agent normalises in one place, before all of its networks, so that target networks and critics see the same numbers
as the network that acts. The statistics are buffers of a module among the agent's networks: they are saved with them
and travel with the model. They change only when the learner draws a batch; acting, evaluation and export apply them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from common.agents.averaging import average, learns_alone, total
from common.agents.machinery.gradient_step import Batch
from common.agents.machinery.update import Results, Update
from common.agents.networks.batch_renorm import mean_and_variance
from common.agents.networks.encoders import LeafSpaces
from common.agents.networks.layers import Observed
from common.errors import ConfigError
from common.spaces import from_columns, name_of

CLIP: Final = 10.0
"""Normalised elements and rewards are clipped to this, as in SB3's ``VecNormalize``."""
EPSILON: Final = 1e-8
"""Added to variances, so that an element that never changes becomes 0."""
RETURN: Final = "info/discounted_return"
"""The column of the return so far of each row's episode, which ``common.envs.wrappers:discounted_return`` reports."""
MASK: Final = "mask"
"""The column bool ``[B, L]`` that batches of sequences have: a step is there; see ``learner.views.sequences``."""


class Normalizer(nn.Module):
    """Running mean and variance of each element of the observations, and the observations normalised by them.

    Rewards are divided by the standard deviation of the discounted return so far, ``G_t = r_t + gamma * G_{t-1}``
    within an episode, as in SB3's ``VecNormalize`` (Engstrom et al., arXiv:2005.12729, section 3). Values then have
    about the size 1, for every unit and density of the rewards. The mean is not subtracted: if episodes end, that would
    change which policy is best.

    Batches are merged by the formula of Chan, Golub and LeVeque (Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances, 1979), so that n batches leave the mean and the variance of all of their rows. Rows
    count as often as they are drawn. Places of a sequence after the end of its episode do not count: there the last
    observation is repeated.

    Args:
        leaves: of the observations, by path. Leaves of floats are normalised; all other leaves stay as they are.
        rewards: whether rewards are normalised.
        max_return: rewards are divided by at least the number that leaves this size to the greatest return so far of
            all drawn rows (SimBa-v2, arXiv:2502.15280), so that categorical critics need no larger atoms. With several
            ranks, the mean over the ranks of the greatest return in their shares of a batch counts. None: no limit.
    """

    count: torch.Tensor
    return_mean: torch.Tensor
    return_var: torch.Tensor
    return_count: torch.Tensor
    greatest_return: torch.Tensor

    def __init__(self, leaves: LeafSpaces, *, rewards: bool = False, max_return: float | None = None) -> None:
        super().__init__()
        self._has_rewards, self._max_return = rewards, max_return
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
        if rewards:
            self.register_buffer("return_mean", torch.zeros(()))
            self.register_buffer("return_var", torch.ones(()))
            self.register_buffer("return_count", torch.zeros(()))
            if max_return is not None:
                self.register_buffer("greatest_return", torch.zeros(()))

    @property
    def columns(self) -> Set[str]:
        """The columns of a batch that it needs or changes; if this is empty, it changes nothing and has no tensors."""
        names = {*self._columns, *(("reward", RETURN) if self._has_rewards else ())}
        return names | {MASK} if names else names

    def forward(self, obs: Observed) -> Observed:
        """Observations of B rows, ``[B, *shape]`` or ``[B, T, *shape]``, normalised as float32; nothing is learnt."""
        if isinstance(obs, dict):
            return {path: self._normalized(path, leaf) for path, leaf in obs.items()}
        return self._normalized("", obs)

    def normalize(self, columns: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The columns of a batch; observations, next observations and rewards are normalised."""
        changed = {
            name: self._normalized(self._columns[name], column) if name in self._columns else column
            for name, column in columns.items()
        }
        if self._has_rewards:
            scale = (self.return_var + EPSILON).rsqrt()
            if self._max_return is not None:
                scale = torch.minimum(scale, self._max_return / self.greatest_return)  # inf before the first batch
            changed["reward"] = (columns["reward"] * scale).clamp(-CLIP, CLIP)
        return changed

    @torch.no_grad()
    def merge(self, columns: Mapping[str, torch.Tensor]) -> None:
        """Merge the observations and returns of a batch, columns ``[B, *shape]`` or ``[B, T, *shape]``.

        Raises:
            ConfigError: the batch has no such columns.
        """
        mask = columns.get(MASK)
        if self._dims:
            obs: Any = from_columns("obs", columns)
            n: int | torch.Tensor = 0
            for path, dims in self._dims.items():
                leaf = (obs[path] if path else obs).float()
                n_leading = leaf.dim() - dims
                counts = _find_observed(mask) if mask is not None and n_leading == 2 else None
                n = _merge(leaf.flatten(0, n_leading - 1), counts, *self._statistics(path), self.count)
            self.count.add_(n)
        if self._has_rewards:
            returns = _returns_in(columns)
            counts = mask if returns.dim() == 2 else None
            self.return_count.add_(
                _merge(returns.flatten(), counts, self.return_mean, self.return_var, self.return_count)
            )
            if self._max_return is not None:
                sizes = returns.abs() if counts is None else returns.abs() * counts
                self.greatest_return.copy_(torch.maximum(self.greatest_return, average(sizes.max())))

    def _normalized(self, path: str, leaf: torch.Tensor) -> torch.Tensor:
        if path not in self._dims:
            return leaf
        mean, var = self._statistics(path)
        return ((leaf.float() - mean) * (var + EPSILON).rsqrt()).clamp(-CLIP, CLIP)

    def _statistics(self, path: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.get_buffer(name_of("mean", path)), self.get_buffer(name_of("var", path))


def _merge(
    rows: torch.Tensor, counts: torch.Tensor | None, mean: torch.Tensor, var: torch.Tensor, before: torch.Tensor
) -> int | torch.Tensor:
    """Merge the rows ``[n, *shape]`` that count into a running mean and variance; return the number of these rows.

    Args:
        rows: all n rows.
        counts: bool, n elements; None: every row counts.
        mean: of all earlier rows, ``[*shape]``; changed in place.
        var: of all earlier rows, ``[*shape]``; changed in place.
        before: the number of earlier rows, a scalar.
    """
    n: int | torch.Tensor
    if counts is None:
        n = len(rows)
        mean_of_rows, var_of_rows = mean_and_variance(rows)
    else:
        n = counts.sum()
        weight = (counts.flatten() / n).view(-1, *(1 for _ in mean.shape))
        # Deviations from the first row, which always counts, are exactly 0 where an element is constant.
        mean_of_rows = rows[0] + (weight * (rows - rows[0])).sum(dim=0)
        var_of_rows = (weight * (rows - mean_of_rows).square()).sum(dim=0)
    if not learns_alone():
        n, mean_of_rows, var_of_rows = _merge_ranks(n, mean_of_rows, var_of_rows, mean)
    share = n / (before + n)
    gap = mean_of_rows - mean
    var.lerp_(var_of_rows, share).add_(gap.square() * (share * (1 - share)))
    mean.add_(gap * share)
    return n


def _merge_ranks(
    n: int | torch.Tensor, mean: torch.Tensor, var: torch.Tensor, near: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The number, mean and variance of the rows of all ranks, from the values of each rank.

    The ranks sum up deviations from ``near``, which is close to the mean and the same on all ranks, in double
    precision: sums of squares alone would lose the digits of a small variance beside a large mean.
    """
    gap, rows = mean.double() - near, torch.as_tensor(n, dtype=torch.float64, device=mean.device)
    sums = total(torch.stack((rows.expand_as(gap), rows * gap, rows * (var + gap.square()))))
    gap, square = sums[1] / sums[0], sums[2] / sums[0]
    n_of_all = sums[0].flatten()[0].float()
    return n_of_all, (near + gap).to(mean.dtype), (square - gap.square()).clamp(min=0).to(var.dtype)


def _find_observed(mask: torch.Tensor) -> torch.Tensor:
    """The places ``[B, L + 1]`` of sequences with an observation before or after a step, for ``mask`` ``[B, L]``."""
    return functional.pad(mask, (0, 1)) | functional.pad(mask, (1, 0))


def _returns_in(columns: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The returns so far of all rows of a batch, ``[B]`` or ``[B, L]``."""
    if RETURN not in columns:
        raise ConfigError(
            f"agent.params.normalize_rewards: needs a column {RETURN}: add discounted_return to "
            "env.wrappers, with the agent's discount_factor, and discounted_return: float32 to env.info"
        )
    return columns[RETURN].float()


def build_normalizer(
    leaves: LeafSpaces, *, enabled: bool, rewards: bool = False, max_return: float | None = None
) -> Normalizer:
    """Make the normaliser of an agent; if nothing is enabled, it changes nothing and has no tensors.

    Raises:
        ConfigError: observations are to be normalised, but no leaf has floats.
    """
    normalizer = Normalizer(leaves if enabled else {}, rewards=rewards, max_return=max_return)
    if enabled and normalizer.columns <= {"reward", RETURN, MASK}:
        found = ", ".join(str(leaf) for leaf in leaves.values())
        raise ConfigError(f"agent.params.normalize_observations: expected observations of floats, found {found}")
    return normalizer


class NormalizeBatch(Update):
    """Merges the observations of each batch into the statistics of a normaliser, and returns the batch normalised.

    A normaliser without columns returns the batch as it is.

    Args:
        normalizer: one of the agent's networks.
        captured: whether the operations are captured, as those of any update.
        merges_first: whether the batch is normalised by statistics that include it. Otherwise an agent that learns from
            the steps of its present policy sees the numbers that the policy saw.
    """

    def __init__(self, normalizer: Normalizer, *, captured: bool = False, merges_first: bool = True) -> None:
        def learn(columns: Batch) -> Results:
            if merges_first:
                normalizer.merge(columns)
                return normalizer.normalize(columns)
            normalized = normalizer.normalize(columns)
            normalizer.merge(columns)
            return normalized

        super().__init__(learn, {}, captured=captured)
        self._normalizer = normalizer

    def __call__(self, batch: Batch, *, recorded: bool = True) -> dict[str, torch.Tensor]:
        columns = {name: column for name, column in batch.items() if name in self._normalizer.columns}
        return {**batch, **super().__call__(columns, recorded=recorded)} if self._normalizer.columns else dict(batch)
