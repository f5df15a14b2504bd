"""Copies of an agent's tensors, as files and readers in other threads need them."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def copy_to_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, without gradients, in the form that a safetensors file takes.

    Each is contiguous, whatever its memory format was, and has memory of its own, also where weights are tied.
    """
    layout = torch.contiguous_format
    return {name: tensor.detach().to("cpu", copy=True, memory_format=layout) for name, tensor in tensors.items()}
