"""In which precision the learner computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from common.config.run_config import Precision
from common.errors import ConfigError


def computing_in(precision: Precision, device: str) -> AbstractContextManager[object]:
    """A context, to be entered again and again, in which an agent's ``opt`` computes in ``precision``.

    With bfloat16, matrix products and convolutions run in it, forwards and backwards; parameters, gradients, optimiser
    states and what else torch does in float32 under autocast stay float32.

    Raises:
        ConfigError: the device does not know this precision.
    """
    if precision == "float32":
        return nullcontext()
    try:
        # Within one opt parameters change between products: a cast of them must not be kept.
        return torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)
    except RuntimeError as error:
        raise ConfigError(f"trainer.precision: {device} cannot compute in {precision}: {error}") from error
