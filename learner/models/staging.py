"""Where published values come from: on a CPU from the live tensors, on a GPU from copies of them on the host.

A plain copy from a GPU would wait for every opt step that is queued there. So a snapshot is queued behind these opt
steps, and a second CUDA stream copies the snapshot to pinned memory while the next opt steps run
(https://pytorch.org/docs/stable/notes/cuda.html). The copy cannot go straight to a model slot: slots are pages of a
file, and not every file system lets such pages be pinned.
"""

from __future__ import annotations

from typing import Protocol

import torch


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
