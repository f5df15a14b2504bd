"""What tests of several agents use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from common.data import Array, Items

Row = tuple[Array, Any, float, Array, bool, bool]
"""obs, action, reward, next_obs, terminated, truncated."""


class Memory:
    """A small ``ReplayBuffer`` of given rows."""

    def __init__(self, rows: Sequence[Row], action_dtype: type = np.int64) -> None:
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        dtypes = (np.float32, action_dtype, np.float32, np.float32, np.bool_, np.bool_)
        columns = zip(*rows, strict=True) if rows else ([] for _ in names)
        parts = zip(names, columns, dtypes, strict=True)
        self._columns: Items = {name: np.array(column, dtype) for name, column, dtype in parts}
        self._rng = np.random.default_rng(0)
        self.inserted, self.sampled = len(rows), 0

    def __len__(self) -> int:
        return self.inserted

    def batch(self, size: int) -> Items:
        self.sampled += size
        rows = self._rng.integers(self.inserted, size=size)
        return {name: column[rows] for name, column in self._columns.items()}


def copies(net: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@torch.no_grad()
def fix_outputs(net: nn.Module, *outputs: float) -> None:
    """Make a network without hidden layers give ``outputs`` whatever it is asked."""
    weight, bias = net.parameters()
    weight.zero_()
    bias.copy_(torch.tensor(outputs))
