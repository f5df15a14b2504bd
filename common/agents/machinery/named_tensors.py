"""Networks and optimisers as tensors by name, for checkpoints, and back; the names are part of the file format."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from common.errors import CheckpointError


def collect_networks(nets: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """The live parameters and buffers of all networks, as ``NET.PARAMETER``."""
    return {f"{net}.{name}": value for net, module in nets.items() for name, value in module.state_dict().items()}


def load_networks(agent: str, nets: Mapping[str, nn.Module], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy the tensors that ``collect_networks`` gave into networks.

    Args:
        agent: the agent's name, for the message.
        nets: the networks by name.
        tensors: of the networks, by ``NET.PARAMETER``; other names are ignored.

    Raises:
        CheckpointError: a network is missing or has another shape.
    """
    for net, module in nets.items():
        prefix = f"{net}."
        state = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"{agent}: the saved network does not fit this one: {error}") from error


def collect_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors an optimiser has gathered, such as Adam's moments, as ``PARAMETER.KEY``; parameters are numbered."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": value for index, entries in state.items() for key, value in entries.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
    """Copy the tensors that ``collect_optimizer`` gave, found under ``prefix``, into an optimiser.

    Learning rates are no tensors: they stay as they are configured now.

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
