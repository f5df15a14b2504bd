"""How an agent applies its networks to observations: on a CPU captured, as updates are."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from common.agents.machinery.tracing import Traced, trace
from common.data import Array

log = logging.getLogger(__name__)


class Inference:
    """A function of observations ``[n, *shape]`` that takes and gives arrays, for use in ``Agent.sample``.

    Captured, its first call for a shape and dtype is traced and later calls replay the traced operations. The results
    are the same bit for bit: random numbers are drawn anew, and parameters have their present values.

    Args:
        function: from tensor to tensor; changes nothing but the state of random generators.
        device: where the function computes; only on a CPU is it ever captured.
        captured: whether the function is captured; see ``Update`` for the functions that can be.
    """

    def __init__(
        self, function: Callable[[torch.Tensor], torch.Tensor], device: torch.device, *, captured: bool = False
    ) -> None:
        self._function, self._device = function, device
        self.captured = captured and device.type == "cpu"
        self._replays: dict[tuple[torch.Size, torch.dtype], Traced] = {}

    def __call__(self, obs: Array) -> Array:
        given = torch.from_numpy(obs)
        replay = self._replays.get((given.shape, given.dtype))
        if replay is not None:
            result = replay(given)[0]
        else:
            with torch.inference_mode():
                result = self._trace(given) if self.captured else self._function(given.to(self._device))
        return result.numpy(force=True)

    def _trace(self, given: torch.Tensor) -> torch.Tensor:
        """Compute the result for these observations, and remember how to replay it for others of their shape."""
        results: list[torch.Tensor] = []

        def run(obs: torch.Tensor) -> list[torch.Tensor]:
            results.append(self._function(obs))
            return results

        try:
            self._replays[given.shape, given.dtype] = trace(run, [given])
        except Exception:
            log.warning("actions are computed eagerly, as they cannot be replayed:", exc_info=True)
            self.captured = False
            return self._function(given)
        return results[0]
