"""The precision in which the learner computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from common.config.trainer_config import ComputingPrecision
from common.errors import ConfigError


def computing_in(precision: ComputingPrecision, device: str) -> AbstractContextManager[object]:
    """A context, which can be entered again and again, in which an agent's ``opt`` computes in ``precision``.

    With bfloat16, matrix products and convolutions run in bfloat16, forwards and backwards. Parameters, gradients and
    optimiser states stay float32, and so do the operations that torch's autocast runs in float32.

    With rounded_products all tensors stay float32. Products and convolutions round their inputs: on a CPU to bfloat16,
    which has 8 significant bits, on a GPU to TF32, which has 11. They add up in float32.

    Raises:
        ConfigError: the device cannot compute in this precision.
    """
    if precision == "float32":
        return nullcontext()
    if precision == "rounded_products":
        return _RoundingProducts(torch.device(device).type)
    try:
        # The optimiser changes parameters within one opt, so autocast must not cache their casts to bfloat16.
        return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)
    except RuntimeError as error:
        raise ConfigError(f"trainer.precision: {device} cannot compute in {precision}: {error}") from error


class _RoundingProducts:
    """A context in which float32 products round their inputs."""

    def __init__(self, kind: str) -> None:
        backends: Any = torch.backends
        on_gpu = kind == "cuda"
        self._kinds = (
            (backends.cuda.matmul, backends.cudnn.conv) if on_gpu else (backends.mkldnn.matmul, backends.mkldnn.conv)
        )
        self._rounded = "tf32" if on_gpu else "bf16"

    def __enter__(self) -> None:
        self._before = [kind.fp32_precision for kind in self._kinds]
        for kind in self._kinds:
            kind.fp32_precision = self._rounded

    def __exit__(self, *exception: object) -> None:
        for kind, before in zip(self._kinds, self._before, strict=True):
            kind.fp32_precision = before
