"""The precision in which the learner computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from common.config.trainer_config import Precision
from common.errors import ConfigError


def computing_in(precision: Precision, device: str) -> AbstractContextManager[object]:
    """A context, which can be entered again and again, in which an agent's ``opt`` computes in ``precision``.

    With bfloat16, matrix products and convolutions run in bfloat16, forwards and backwards. Parameters, gradients and
    optimiser states stay float32, and so do the operations that torch's autocast runs in float32.

    Raises:
        ConfigError: the device cannot compute in this precision.
    """
    if precision == "float32":
        return nullcontext()
    try:
        # The optimiser changes parameters within one opt, so autocast must not cache their casts to bfloat16.
        return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)
    except RuntimeError as error:
        raise ConfigError(f"trainer.precision: {device} cannot compute in {precision}: {error}") from error
