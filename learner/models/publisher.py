"""The trainer's side of the model slots: the live parameters of an agent become the newest model.

On a CPU the values come from the live tensors, on a GPU from copies of them on the host. A plain copy from a GPU would
wait for every opt step that is queued there. So a snapshot is queued behind these opt steps, and a second CUDA stream
copies the snapshot to pinned memory while the next opt steps run
(https://pytorch.org/docs/stable/notes/cuda.html). The copy cannot go straight to a model slot: slots are pages of a
file, and not every file system lets such pages be pinned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from safetensors.torch import save

from common.agents.tensor_copies import copy_to_cpu
from common.config.trainer_config import Precision
from common.data import ModelVersion
from common.errors import ConfigError
from common.shared.slots import ModelSlots

NORMALIZER: Final = "normalizer."
"""The beginning of the names of the statistics of observations, of any number of axes."""


class TensorSource(Protocol):
    """The values of a model's tensors, on the host."""

    tensors: list[torch.Tensor]
    """On the CPU: they have the values that were fetched last, once these have arrived."""

    def fetch(self) -> None:
        """Begin to copy the present values; the values fetched before must have arrived."""

    def has_arrived(self, *, wait: bool) -> bool:
        """Whether the values fetched last are in ``tensors``; ``wait``: wait until they are, and return True."""


class HostTensors:
    """Live tensors on the host: nothing is copied, so they must be read before the next opt step changes them."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def fetch(self) -> None:
        pass

    def has_arrived(self, *, wait: bool) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True


class GpuTensors:
    """Live tensors on a GPU, and pinned copies of them. If one tensor is on the host, ``fetch`` waits for the GPU.

    Two copies follow each other. The first goes to a snapshot on the GPU, in the stream of the opt steps: the next opt
    step is queued behind it and cannot change the values that it reads. The second goes from the snapshot to the host,
    in a separate stream, which waits for the first copy. The snapshot may be overwritten only after the second copy, so
    the caller fetches again only after ``has_arrived`` has returned True.

    Args:
        tensors: the live tensors.
        sent: tensors of the same shapes, in the dtypes to which the GPU casts the live tensors.
        device: the GPU.
    """

    def __init__(self, tensors: list[torch.Tensor], sent: list[torch.Tensor], device: torch.device) -> None:
        self.tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in sent]
        self._live, self._device = tensors, device
        self._snapshot = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in sent]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fetch(self) -> None:
        torch._foreach_copy_(self._snapshot, self._live)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for here, there in zip(self.tensors, self._snapshot, strict=True):
                here.copy_(there, non_blocking=True)
        self._copied.record(self._stream)

    def has_arrived(self, *, wait: bool) -> bool:
        if wait:
            self._copied.synchronize()
        return bool(self._copied.query())  # type: ignore[no-untyped-call]


def make_source(tensors: list[torch.Tensor], sent: list[torch.Tensor]) -> TensorSource:
    """The source of live tensors that are sent as ``sent``: with copies on the host if any of them is on a GPU."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    return HostTensors(tensors) if device is None else GpuTensors(tensors, sent, device)


class ModelPublisher:
    """Copies live tensors into a slot and makes that slot the newest model.

    The copy from a GPU takes a moment, during which training goes on; at most one model is on its way at a time.

    Args:
        path: the file of the slots, made here.
        tensors: the agent's ``model_info``.
        incarnation: of the run, the first part of every version.
        precision: of the weights in the slots: rounded to bfloat16, or unchanged. Weights are tensors of floats with
            two axes and more. Single axes, such as biases and the statistics of a batch norm layer, are a hundredth of
            the bytes, and the statistics of observations may be large beside their deviation: neither is rounded.
        run_id: of the run, for readers of the file that may have joined another run.
        acting: gives the highest incarnation whose models have acted. A life that this directory does not know of may
            have begun at a later time by its clock, and actors may still have a model of that life. They take only
            greater versions, so the incarnation of coming models is raised above it. None: no model has acted.

    Raises:
        ConfigError: a tensor has a dtype that cannot be sent.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, torch.Tensor],
        incarnation: int,
        precision: Precision = "float32",
        run_id: str | None = None,
        *,
        acting: Callable[[], int] | None = None,
    ) -> None:
        sent = {name: as_sent(name, tensor, precision) for name, tensor in tensors.items()}
        blank = save(copy_to_cpu(sent))
        self.blob_bytes = len(blank)
        self.slots = ModelSlots(path, len(blank), create=True, run_id=run_id)
        self.seconds = 0.0
        """Seconds spent on publishing so far."""
        self._acting = acting
        self._incarnation = incarnation if acting is None else max(incarnation, acting() + 1)
        self._source = make_source(list(tensors.values()), list(sent.values()))
        self._targets = [_lay_out(data, blank, sent) for data in self.slots.data]
        self._pending: int | None = None
        """Opt steps of the model that is on its way; None if there is none."""

    def publish(self, opt_steps: int, *, wait: bool = False) -> None:
        """Publish the tensors' present values. From a GPU, a later ``settle`` makes them the newest model.

        Args:
            opt_steps: of the agent.
            wait: return only when they are the newest model.
        """
        self.settle(wait=True)
        began = time.monotonic()
        self._source.fetch()
        self.seconds += time.monotonic() - began
        self._pending = opt_steps
        self.settle(wait=wait)

    def settle(self, *, wait: bool = False) -> None:
        """Make the model that is on its way the newest if its values have arrived; ``wait``: wait until they have."""
        if self._pending is None:
            return
        began = time.monotonic()
        if self._source.has_arrived(wait=wait):
            self._write(self._pending)
            self._pending = None
        self.seconds += time.monotonic() - began

    @torch.no_grad()
    def _write(self, opt_steps: int) -> None:
        acting = self._acting() if self._acting is not None else 0
        if acting > self._incarnation:
            self._incarnation = acting + 1
        version = ModelVersion(self._incarnation, opt_steps)
        self.slots.write(version, self._copy_to)

    def _copy_to(self, slot: int) -> None:
        if self._source.tensors:  # torch refuses empty lists, but a policy may have no parameters.
            torch._foreach_copy_(self._targets[slot], self._source.tensors)


def as_sent(name: str, tensor: torch.Tensor, precision: Precision = "float32") -> torch.Tensor:
    """The tensor on the CPU, in the dtype in which it is sent.

    Raises:
        ConfigError: its dtype cannot be sent.
    """
    is_weight = tensor.is_floating_point() and tensor.dim() >= 2 and not name.startswith(NORMALIZER)
    if is_weight and precision == "bfloat16":
        return tensor.detach().to("cpu", torch.bfloat16)
    copied = tensor.detach().cpu()
    try:
        is_sent = copied.dtype == torch.bfloat16 or not np.iscomplexobj(copied.numpy())
    except TypeError:
        is_sent = False
    if not is_sent:
        raise ConfigError(
            f"model_info '{name}': expected a real dtype that numpy has, or bfloat16, found {tensor.dtype}"
        )
    return copied


def _lay_out(data: memoryview, blank: bytes, sent: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Write a safetensors file into a slot and return its tensors, in the order of ``sent``."""
    data[:] = blank
    begin = 8 + int.from_bytes(blank[:8], "little")
    layout = json.loads(blank[8:begin])
    views = []
    for name, tensor in sent.items():
        place = begin + layout[name]["data_offsets"][0]
        # torch.frombuffer accepts no empty buffer.
        flat = torch.from_numpy(np.frombuffer(data, np.uint8, tensor.nbytes, place))
        views.append(flat.view(tensor.dtype).reshape(tensor.shape))
    return views
