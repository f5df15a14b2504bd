"""What every agent does to its networks: descend, track, keep and restore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import nn

from common.data import Items
from common.errors import CheckpointError
from common.interfaces import ReplayBuffer, TensorReplay


def to_tensors(items: Items, device: torch.device) -> dict[str, torch.Tensor]:
    """Columns ``[B, *shape]`` as tensors on ``device``."""
    return {name: torch.from_numpy(column).to(device) for name, column in items.items()}


def draw(buffer: ReplayBuffer, size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """A batch of ``size`` items on ``device``; a ``TensorReplay`` has them there already."""
    if isinstance(buffer, TensorReplay):
        return buffer.tensors(size)
    return to_tensors(buffer.batch(size), device)


TD_ERROR: Final = "td_error"
"""What an update gives beside its record, where the buffer wants it."""


def td_error_of(
    batch: Mapping[str, torch.Tensor], prediction: torch.Tensor, target: torch.Tensor
) -> dict[str, torch.Tensor]:
    """How wrong each item was, by predictions ``[B]`` or ``[N, B]`` and targets ``[B]``; of several critics the mean.

    Nothing for a batch from a uniform buffer, which does not ask.
    """
    if "index" not in batch:
        return {}
    return {TD_ERROR: (target - prediction).detach().abs().reshape(-1, len(target)).mean(dim=0).float()}


def report_td_error(buffer: ReplayBuffer, batch: Mapping[str, torch.Tensor], results: dict[str, torch.Tensor]) -> None:
    """Hand a prioritised buffer the errors that are among the results of an update, and take them out."""
    if TD_ERROR in results:
        buffer.update_priority(batch["index"].cpu().numpy(), results.pop(TD_ERROR).cpu().numpy())


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Adam:
    """Adam in one kernel: a third of the time that the default takes for a small network on a CPU."""
    return torch.optim.Adam(parameters, lr=lr, fused=True)


def descend(
    loss: torch.Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None
) -> torch.Tensor | None:
    """One step down ``loss``, in the parameters of ``optimizer`` alone; other networks in its graph are left alone.

    Returns:
        The norm of the gradients before they were clipped to ``max_grad_norm``; None where they are not.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=parameters)  # type: ignore[no-untyped-call]
    norm = None if max_grad_norm is None else nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
    return norm


@torch.no_grad()
def track(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move ``target`` by the share ``tau`` towards ``online`` (Polyak averaging); 1 copies.

    Buffers, such as the statistics of batch normalisation, are copied: they are averages already.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
    for copied, buffer in zip(target.buffers(), online.buffers(), strict=True):
        copied.copy_(buffer)


def saved(nets: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """Every network's state in one mapping, as ``NET.PARAMETER``."""
    return {f"{net}.{name}": value for net, module in nets.items() for name, value in module.state_dict().items()}


def restore(agent: str, nets: Mapping[str, nn.Module], params: Mapping[str, torch.Tensor]) -> None:
    """Load what ``saved`` gave.

    Args:
        agent: who asks, for the message.
        nets: the networks by name.
        params: their parameters.

    Raises:
        CheckpointError: a network is missing or has another shape.
    """
    for net, module in nets.items():
        prefix = f"{net}."
        state = {name.removeprefix(prefix): v for name, v in params.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{agent}: the saved network does not fit this one: {error}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What an optimiser has gathered, such as Adam's moments, as ``PARAMETER.KEY``; parameters are numbered."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": value for index, entries in state.items() for key, value in entries.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
    """Load what ``optimizer_tensors`` gave, found under ``prefix``; learning rates stay as they are configured now.

    Raises:
        ValueError: a tensor has another shape than the parameter it belongs to.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            index, _, key = name.removeprefix(prefix).partition(".")
            shape = parameters[int(index)].shape
            if value.dim() and value.shape != shape:
                raise ValueError(f"{name}: expected {list(shape)}, found {list(value.shape)}")
            state.setdefault(int(index), {})[key] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
