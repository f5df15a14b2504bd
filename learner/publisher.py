"""Publishing: the live parameters of an agent become the newest model in the shared slots."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.numpy import save

from common.data import Array
from common.errors import ConfigError
from learner.models import N_SLOTS, ModelSlots
from learner.shared import fence

_NUMPY: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}


class ModelPublisher:
    """The trainer's side: copies live tensors into a slot (0.13 ms for 1.7 M parameters) and counts it up.

    Args:
        path: the file of the slots, made here.
        tensors: the agent's ``model_info``.
        incarnation: of the run, the first part of every version.

    Raises:
        ConfigError: a tensor's dtype cannot travel.
    """

    def __init__(self, path: Path, tensors: Mapping[str, torch.Tensor], incarnation: int) -> None:
        blank = save({name: _numpy(name, tensor) for name, tensor in tensors.items()})
        self.blob_bytes = len(blank)
        self.slots = ModelSlots(path, len(blank), create=True)
        self.seconds = 0.0
        """Spent on publishing so far."""
        self._incarnation = incarnation
        self._copy = torch._foreach_copy_
        self._sources = list(tensors.values())
        self._targets = [_tensor_views(data, blank, list(tensors)) for data in self.slots.data]

    @torch.no_grad()
    def publish(self, opt_steps: int) -> None:
        """Make the tensors' present values the newest model."""
        began = time.monotonic()
        number = self.slots.header.published + 1
        slot = self.slots.slots[number % N_SLOTS]
        slot.ticket = 0
        fence()
        self._copy(self._targets[number % N_SLOTS], self._sources)
        slot.incarnation, slot.opt_steps = self._incarnation, opt_steps
        slot.published_at = time.monotonic()
        fence()
        slot.ticket = number
        self.slots.header.published = number
        self.seconds += slot.published_at - began


def _numpy(name: str, tensor: torch.Tensor) -> Array:
    try:
        return tensor.detach().cpu().numpy()
    except TypeError as error:
        raise ConfigError(f"model_info '{name}': expected a dtype that numpy has, found {tensor.dtype}") from error


def _tensor_views(data: memoryview, blank: bytes, names: list[str]) -> list[torch.Tensor]:
    """Write a safetensors header into a slot and return its tensors, in the order of ``names``."""
    data[:] = blank
    header_bytes = int.from_bytes(blank[:8], "little")
    layout = json.loads(blank[8 : 8 + header_bytes])
    raw = np.frombuffer(data, np.uint8)[8 + header_bytes :]
    views = []
    for name in names:
        begin, end = layout[name]["data_offsets"]
        dtype = np.dtype(_NUMPY[layout[name]["dtype"]])
        views.append(torch.from_numpy(raw[begin:end].view(dtype).reshape(layout[name]["shape"])))
    return views
