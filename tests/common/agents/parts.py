"""What tests of several agents use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from common.data import Array
from common.testing import ItemMemory

Row = tuple[Array, Any, float, Array, bool, bool]
"""obs, action, reward, next_obs, terminated, truncated."""


def holding(rows: Sequence[Row], action_dtype: type = np.int64, **more: Array) -> ItemMemory:
    """A memory of rows, with ``more`` columns."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    dtypes = (np.float32, action_dtype, np.float32, np.float32, np.bool_, np.bool_)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    parts = zip(names, columns, dtypes, strict=True)
    return ItemMemory({name: np.array(column, dtype) for name, column, dtype in parts} | more)


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
