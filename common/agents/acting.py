"""How agents compute actions: on a CPU replayed, since a small network's Python costs more than its arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from common.agents.tracing import Traced, trace
from common.agents.update import UpdateConfig
from common.data import Array

log = logging.getLogger(__name__)


class Acting:
    """A function of observations ``[n, *shape]``, called with arrays and answering with arrays.

    On a CPU the first call for a shape and dtype traces, and what comes after are replays: the same bit for bit, random
    numbers included, and of the parameters as they are then.

    Args:
        function: from tensor to tensor; changes nothing but random generators.
        config: where updates are eager, so is this.
        device: where the function computes.
    """

    def __init__(
        self, function: Callable[[torch.Tensor], torch.Tensor], config: UpdateConfig, device: torch.device
    ) -> None:
        self._function, self._device = function, device
        self._is_eager = config.is_eager or device.type != "cpu"
        self._replays: dict[tuple[torch.Size, torch.dtype], Traced] = {}

    def __call__(self, obs: Array) -> Array:
        given = torch.from_numpy(obs)
        replay = self._replays.get((given.shape, given.dtype))
        if replay is not None:
            result = replay(given)[0]
        else:
            with torch.inference_mode():
                result = self._function(given.to(self._device)) if self._is_eager else self._trace(given)
        return result.numpy(force=True)

    def _trace(self, given: torch.Tensor) -> torch.Tensor:
        """The result for these observations; others like them are replayed from now on."""
        results: list[torch.Tensor] = []

        def listed(obs: torch.Tensor) -> list[torch.Tensor]:
            results.append(self._function(obs))
            return results

        try:
            self._replays[given.shape, given.dtype] = trace(listed, [given])
        except Exception:
            log.warning("actions are computed eagerly, as they cannot be replayed:", exc_info=True)
            self._is_eager = True
            return self._function(given)
        return results[0]
