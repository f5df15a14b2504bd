"""Means over the ranks of a run: of gradients, and of the statistics that networks gather from batches.

The ranks of a run draw one batch together, and each rank computes with its share. If a mean over the share stands for
the mean over the whole batch, the ranks average it. A process that learns alone averages nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn

Average = Callable[[torch.Tensor], None]
"""Replaces the values of a contiguous tensor of floats by their means over all ranks."""


class _Ranks:
    """How this process averages."""

    average: Average | None = None
    count = 1
    can_be_captured = True


def average_by(function: Average | None, n_ranks: int = 1, *, can_be_captured: bool = True) -> None:
    """Compute means over ``n_ranks`` ranks by ``function`` from now on; None: this process learns alone.

    A process calls this once, before its first update: an update that was captured earlier does not average.

    Args:
        function: averages a tensor in place, see ``Average``.
        n_ranks: the number of ranks.
        can_be_captured: False: updates stay eager, since ``function`` copies from a GPU, which no CUDA graph records.
    """
    _Ranks.average, _Ranks.count, _Ranks.can_be_captured = function, n_ranks, can_be_captured


def _average_in_place(tensor: torch.Tensor) -> None:
    assert _Ranks.average is not None, "captured with other ranks, replayed alone"
    _Ranks.average(tensor)


# As an operation of torch, the average can be captured with the operations around it.
_LIBRARY = torch.library.Library("crossborder", "DEF")  # type: ignore[no-untyped-call] # so are the lines below
_LIBRARY.define("average_(Tensor(a!) tensor) -> ()")  # type: ignore[no-untyped-call]
_LIBRARY.impl("average_", _average_in_place, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
AVERAGE: Final = torch.ops.crossborder.average_.default


def average(tensor: torch.Tensor) -> torch.Tensor:
    """The means over all ranks of the values of a tensor, which has the same shape on each rank.

    Every rank must call it equally often and in the same order. The means are the same on all ranks bit for bit. They
    are floats even if the values are integers, and have no gradient.
    """
    if _Ranks.average is None:
        return tensor
    floats = tensor.detach() if tensor.is_floating_point() else tensor.float()
    averaged = floats.clone(memory_format=torch.contiguous_format)
    AVERAGE(averaged)
    return averaged


def total(tensor: torch.Tensor) -> torch.Tensor:
    """The sums over all ranks of the values of a tensor; see ``average``."""
    return tensor if _Ranks.average is None else average(tensor) * _Ranks.count


def learns_alone() -> bool:
    """Whether this process is the only rank."""
    return _Ranks.average is None


def can_be_captured() -> bool:
    """Whether an update that averages over ranks can be captured; see ``average_by``."""
    return _Ranks.can_be_captured


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace the gradients of parameters by their means over all ranks, in one message for all of them.

    The mean over ranks of the gradients of mean losses is the gradient of the mean loss of the whole batch.
    """
    if _Ranks.average is None:
        return
    learnt = [parameter for parameter in parameters if parameter.grad is not None]
    if not learnt:
        return
    flat = torch.cat([parameter.grad.flatten() for parameter in learnt if parameter.grad is not None])
    AVERAGE(flat)
    means = torch.split(flat, [parameter.numel() for parameter in learnt])
    for parameter, mean in zip(learnt, means, strict=True):
        parameter.grad = mean.view_as(parameter).to(parameter.dtype)
