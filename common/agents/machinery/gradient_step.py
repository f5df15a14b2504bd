"""A gradient step: its batch as tensors, the steps of optimiser and target network, and TD errors for the buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import nn

from common.agents.averaging import average_gradients
from common.data import Items
from common.errors import ConfigError
from common.interfaces import EnvSpec, ReplayBuffer
from common.spaces import leaves_of

Batch = Mapping[str, torch.Tensor]
"""Columns ``[B, *shape]`` by name, all on the agent's device."""

TD_ERROR: Final = "td_error"
"""The result of an update that holds the TD errors ``[B]``; it is for the buffer and does not reach the record."""

AT_ONCE: Final = 8
"""The most batches that are drawn at once: with more, what a network of 2x256 computes of them leaves the cache."""
AT_ONCE_BYTES: Final = 512 << 10
"""The most bytes of several batches that are drawn at once."""


def to_tensors(items: Items, device: torch.device) -> dict[str, torch.Tensor]:
    """Columns ``[B, *shape]`` as tensors of the same dtypes on ``device``; on the CPU they share the arrays' memory.

    Arrays that are not in C order are copied: a captured update replays operations for that order.
    A GPU copies them from pinned memory while the host goes on. A copy from an array itself would wait for all that is
    queued on the GPU (https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html).
    """
    tensors = {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in items.items()}
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}


def draw(buffer: ReplayBuffer, size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Draw a batch of size ``size`` onto ``device``.

    A buffer that keeps its rows on the device gathers the batch there; the arrays of other buffers are copied.
    """
    batch = buffer.tensors(size)
    return to_tensors(buffer.batch(size), device) if batch is None else batch


def draw_transitions(agent: str, buffer: ReplayBuffer, size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Draw a batch of transitions as ``draw`` does, for the agent of this name.

    Raises:
        ConfigError: the buffer's view makes sequences.
    """
    batch = draw(buffer, size, device)
    if "mask" in batch:
        raise ConfigError(
            f"replay.view: {agent} learns from transitions, but the view makes sequences; remove replay.view.target, "
            "or use an agent with a memory"
        )
    return batch


def count_at_once(spec: EnvSpec, batch_size: int, updates: int) -> int:
    """How many of an opt step's batches of transitions a uniform buffer may draw at once.

    It is a divisor of ``updates``, the number of these batches, so that all draws of a run have the same size.
    """
    leaves = leaves_of(spec.observation_space).values()
    obs_bytes = sum(math.prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    most = max(1, min(AT_ONCE, AT_ONCE_BYTES // (2 * batch_size * obs_bytes)))
    return max(n for n in range(1, most + 1) if updates % n == 0)


def split_batches(batches: Batch, n: int) -> list[dict[str, torch.Tensor]]:
    """Split columns of n batches that were drawn at once, ``[n * B, …]``, into the batches."""
    if n == 1:
        return [dict(batches)]
    parts = [column.tensor_split(n) for column in batches.values()]
    return [dict(zip(batches, columns, strict=True)) for columns in zip(*parts, strict=True)]


def discount_of(batch: Batch, discount_factor: float) -> torch.Tensor | float:
    """The discount of the next value: the batch's column ``discount`` ``[B]``, or one ``discount_factor`` for all.

    Transitions of n steps have the column, since the value after k steps is discounted by gamma^k.
    """
    return batch.get("discount", discount_factor)


def measure_td_error(batch: Batch, prediction: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The results that ``report_td_error`` takes: the sizes of the items' TD errors, ``[B]``.

    Args:
        batch: only a prioritised buffer's batch has a column ``index``; any other batch has no results.
        prediction: of one critic ``[B]`` or of several ``[N, B]``, whose mean error counts.
        target: ``[B]``, or ``[N, B]`` if each critic has a separate target.
    """
    return name_td_error(batch, (target - prediction).abs().reshape(-1, prediction.shape[-1]).mean(dim=0))


def name_td_error(batch: Batch, error: torch.Tensor) -> dict[str, torch.Tensor]:
    """The results that ``report_td_error`` takes, for errors ``[B]`` that the agent has measured itself."""
    return {TD_ERROR: error.detach().float()} if "index" in batch else {}


def report_td_error(buffer: ReplayBuffer, batch: Batch, results: dict[str, torch.Tensor]) -> None:
    """Take the TD errors out of the results of an update, if there are any, and report them to the buffer."""
    if TD_ERROR in results:
        buffer.update_priority(batch["index"].cpu().numpy(), results.pop(TD_ERROR).cpu().numpy())


def descend(
    loss: torch.Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None
) -> dict[str, torch.Tensor]:
    """Take one step down ``loss``, a scalar, in the parameters of ``optimizer`` alone.

    Other networks that the loss went through get no gradients. With several ranks the loss is that of this rank's share
    of the batch, and all ranks take the same step, down the mean of their losses.

    Returns:
        For the record, ``grad_norm``: that of the gradients before they were clipped to ``max_grad_norm``. Nothing
        without a ``max_grad_norm``.
    """
    # A user's network may have layers that are not trained.
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
    average_gradients(parameters)
    norm = {} if max_grad_norm is None else {"grad_norm": nn.utils.clip_grad_norm_(parameters, max_grad_norm)}
    optimizer.step()
    return norm


@torch.no_grad()
def track(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move ``target`` by the share ``tau`` towards ``online`` (Polyak averaging); 1 copies.

    Buffers, such as the statistics of batch normalisation, are copied: they are averages already.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for buffer_of_target, buffer in zip(target.buffers(), online.buffers(), strict=True):
        buffer_of_target.copy_(buffer)
