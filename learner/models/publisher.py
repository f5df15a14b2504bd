"""Publishing: the live parameters of an agent become the newest model in the shared slots."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save

from common.config.run_config import Precision
from common.errors import ConfigError
from learner.models.slots import N_SLOTS, ModelSlots
from learner.models.staging import source_of
from learner.shared.mapped import fence


class ModelPublisher:
    """The trainer's side: copies live tensors into a slot and counts it up.

    From a GPU a model is on its way for a moment, at most one at a time; training goes on meanwhile.

    Args:
        path: the file of the slots, made here.
        tensors: the agent's ``model_info``.
        incarnation: of the run, the first part of every version.
        precision: bfloat16 rounds floating-point tensors to it; otherwise they travel as they are.

    Raises:
        ConfigError: a tensor's dtype cannot travel.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, torch.Tensor], incarnation: int, precision: Precision = "float32"
    ) -> None:
        sent = {name: _as_sent(name, tensor, precision) for name, tensor in tensors.items()}
        blank = save({name: tensor.contiguous() for name, tensor in sent.items()})
        self.blob_bytes = len(blank)
        self.slots = ModelSlots(path, len(blank), create=True)
        self.seconds = 0.0
        """Spent on publishing so far."""
        self._incarnation = incarnation
        self._copy = torch._foreach_copy_
        self._source = source_of(list(tensors.values()), list(sent.values()))
        self._targets = [_views(data, blank, sent) for data in self.slots.data]
        self._taken: int | None = None
        """Opt steps of the model on its way."""

    def publish(self, opt_steps: int, *, wait: bool = False) -> None:
        """Take the tensors' present values for the newest model; from a GPU it becomes that by ``settle``.

        Args:
            opt_steps: of the agent.
            wait: until it is.
        """
        self.settle(wait=True)
        began = time.monotonic()
        self._source.take()
        self.seconds += time.monotonic() - began
        self._taken = opt_steps
        self.settle(wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """Make the model on its way the newest if it has arrived; with ``wait`` True, as soon as it has."""
        if self._taken is None:
            return
        began = time.monotonic()
        if self._source.arrived(wait=wait):
            self._write(self._taken)
            self._taken = None
        self.seconds += time.monotonic() - began

    @torch.no_grad()
    def _write(self, opt_steps: int) -> None:
        number = self.slots.header.published + 1
        slot = self.slots.slots[number % N_SLOTS]
        slot.ticket = 0
        fence()
        self._copy(self._targets[number % N_SLOTS], self._source.tensors)
        slot.incarnation, slot.opt_steps = self._incarnation, opt_steps
        slot.published_at = time.monotonic()
        fence()
        slot.ticket = number
        self.slots.header.published = number


def _as_sent(name: str, tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    """A copy on the CPU, in the dtype in which it travels."""
    if tensor.is_floating_point() and precision == "bfloat16":
        return tensor.detach().to("cpu", torch.bfloat16)
    copied = tensor.detach().cpu()
    if copied.dtype != torch.bfloat16:
        try:
            copied.numpy()
        except TypeError as error:
            message = f"model_info '{name}': expected a dtype that numpy has, or bfloat16, found {tensor.dtype}"
            raise ConfigError(message) from error
    return copied


def _views(data: memoryview, blank: bytes, sent: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Write a safetensors file into a slot and return its tensors, in the order of ``sent``."""
    data[:] = blank
    begin = 8 + int.from_bytes(blank[:8], "little")
    layout = json.loads(blank[8:begin])
    views = []
    for name, tensor in sent.items():
        place = begin + layout[name]["data_offsets"][0]
        flat = torch.frombuffer(data, dtype=torch.uint8, count=tensor.nbytes, offset=place)
        views.append(flat.view(tensor.dtype).reshape(tensor.shape))
    return views
