"""Where published values come from: on a CPU from the live tensors, on a GPU from copies of them on the host.

A plain copy from a GPU would wait for every opt step that is queued there. So a snapshot is queued behind them, and a
stream beside the computing one copies it to pinned memory (https://pytorch.org/docs/stable/notes/cuda.html). It cannot
go straight to a model slot: slots are pages of a file, and not every file system lets such pages be pinned.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Source(Protocol):
    """The values of a model's tensors, on the host."""

    tensors: list[torch.Tensor]
    """On the CPU: they have the values taken last, once these have arrived."""

    def take(self) -> None:
        """Begin to fetch the present values; those taken before must have arrived."""

    def arrived(self, *, wait: bool) -> bool:
        """Whether the values taken last are here; with ``wait`` True, as soon as they are."""


class Live:
    """Tensors that are on the host: they are there at once, so that they are read before anything changes them."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def take(self) -> None:
        pass

    def arrived(self, *, wait: bool) -> bool:  # noqa: ARG002 - there is nothing to wait for
        return True


class Staged:
    """Tensors of a GPU, and pinned copies of them. Should one be on the host, ``take`` waits for the GPU.

    Args:
        tensors: live.
        sent: of the same shapes, in the dtypes to which the GPU casts them.
        device: the GPU.
    """

    def __init__(self, tensors: list[torch.Tensor], sent: list[torch.Tensor], device: torch.device) -> None:
        self.tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in sent]
        self._live, self._device = tensors, device
        self._snapshot = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in sent]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def take(self) -> None:
        torch._foreach_copy_(self._snapshot, self._live)  # In line with the opt steps: before the next changes them.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for here, there in zip(self.tensors, self._snapshot, strict=True):
                here.copy_(there, non_blocking=True)
        self._copied.record(self._stream)

    def arrived(self, *, wait: bool) -> bool:
        if wait:
            self._copied.synchronize()
        return bool(self._copied.query())  # type: ignore[no-untyped-call]


def source_of(tensors: list[torch.Tensor], sent: list[torch.Tensor]) -> Source:
    """The source of live tensors that travel as ``sent`` does: staged if any of them is on a GPU."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    return Live(tensors) if device is None else Staged(tensors, sent, device)
