"""Batch renormalisation, by which critics learn without target networks (CrossQ, arXiv:1902.05605)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from common.agents.averaging import average


def mean_and_variance(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the variance (of the population) over ``n`` rows ``[n, *shape]``, ``[*shape]`` both.

    They are exact for an element that has the same value in all rows: its variance is 0. On a CPU, the three passes
    over the rows take up to a fifteenth of the time of ``torch.var_mean``, whose one pass is not vectorised.
    """
    mean = rows[0] + (rows - rows[0]).mean(dim=0)
    return mean, (rows - mean).square_().mean(dim=0)


MOMENTUM: Final = 0.01
"""The share of a batch in the running statistics; CrossQ's authors use this number and the numbers below."""
EPS: Final = 1e-3
R_MAX: Final = 3.0
D_MAX: Final = 5.0
WARM_UP: Final = 100_000
"""The number of batches that are normalised by their own statistics alone, while the running statistics settle."""
NEVER: Final = math.inf
"""A warm-up that does not end: plain batch normalisation (arXiv:1502.03167)."""


class BatchRenorm(nn.Module):
    """Batch normalisation that comes close to the running statistics while it learns (arXiv:1702.03275).

    In train mode features are normalised by the statistics of the batch; after a warm-up they are corrected towards the
    running statistics, so that the network computes nearly the same in train and in eval mode:

        y = (x - mean) / std * r + d,   r = clip(std / running_std, 1/3, 3),   d = clip((mean - running_mean) /
        running_std, -5, 5),   without gradients through r and d

    In eval mode features are normalised by the running statistics, which stay as they are. With several ranks each
    normalises by the statistics of its share of the batch, and the running statistics follow their mean over ranks.

    Args:
        n_features: F.
        eps: added to variances.
        warm_up: the number of batches without correction.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, n_features: int, *, eps: float = EPS, warm_up: float = WARM_UP) -> None:
        super().__init__()
        self._eps, self._warm_up = eps, warm_up
        self.weight, self.bias = nn.Parameter(torch.ones(n_features)), nn.Parameter(torch.zeros(n_features))
        self.register_buffer("running_mean", torch.zeros(n_features))
        self.register_buffer("running_var", torch.ones(n_features))
        self.register_buffer("num_batches_tracked", torch.zeros(()))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, F]`` to ``[B, F]`` float32; in train mode B is at least 2."""
        x = features.float()  # Under autocast features may be bfloat16, too coarse for statistics.
        if not self.training:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self._eps)
        with torch.no_grad():
            mean, var = mean_and_variance(x)
            std, running_std = (var + self._eps).sqrt_(), (self.running_var + self._eps).sqrt_()
            is_warm = self.num_batches_tracked >= self._warm_up
            r = torch.where(is_warm, (std / running_std).clamp_(1 / R_MAX, R_MAX), 1.0)
            d = torch.where(is_warm, ((mean - self.running_mean) / running_std).clamp_(-D_MAX, D_MAX), 0.0)
            mean_of_ranks, var_of_ranks = average(torch.stack((mean, var)))  # The same on all ranks.
            self.running_mean.lerp_(mean_of_ranks, MOMENTUM)
            self.running_var.lerp_(var_of_ranks, MOMENTUM)
            self.num_batches_tracked.add_(1)
        weight, bias = self.weight * r, torch.addcmul(self.bias, self.weight, d)
        return functional.batch_norm(x, None, None, weight, bias, training=True, eps=self._eps)


@contextmanager
def frozen_statistics(*nets: nn.Module) -> Iterator[None]:
    """Within this context, ``BatchRenorm`` in the networks applies its running statistics and does not change them.

    So a network that only values or acts in the update of another one is the function that it is in eval mode, and
    learns its statistics from its own updates alone.
    """
    learning = [part for net in nets for part in net.modules() if isinstance(part, BatchRenorm) and part.training]
    for part in learning:
        part.training = False
    try:
        yield
    finally:
        for part in learning:
            part.training = True
