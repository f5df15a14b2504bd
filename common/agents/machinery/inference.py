"""Applies an agent's networks to observations; on a CPU this can be captured, as updates can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from common.agents.machinery.tracing import Traced, trace
from common.data import Array, Leaves

log = logging.getLogger(__name__)


class Inference:
    """A function of n observations that takes and gives arrays, for use in ``Agent.sample``.

    If it is captured, its first call for a shape and dtype is traced, and later calls replay the traced operations. The
    results are those of eager calls bit for bit: random numbers are drawn again, and parameters have their present
    values.

    Args:
        function: from observations, a tensor or for structured spaces a dict of tensors, to a tensor; changes nothing
            but the state of random generators.
        device: where the function computes; it is captured only on a CPU.
        captured: whether the function is captured; see ``Update`` for the functions that can be.
    """

    def __init__(
        self, function: Callable[[Any], torch.Tensor], device: torch.device, *, captured: bool = False
    ) -> None:
        self._function, self._device = function, device
        self.captured = captured and device.type == "cpu"
        self._replays: dict[object, Traced] = {}
        self._array = np.empty(0)  # The observations of the last call, and ``_tensor`` over the same memory.
        self._tensor = torch.from_numpy(self._array)

    def __call__(self, obs: Leaves) -> Array:
        if isinstance(obs, dict):
            names: tuple[str, ...] | None = tuple(obs)
            given = [torch.from_numpy(leaf) for leaf in obs.values()]
            kind: object = (names, *((leaf.shape, leaf.dtype) for leaf in given))
        else:
            if obs is not self._array:  # Plain lanes give the same array in each round.
                self._array, self._tensor = obs, torch.from_numpy(obs)
            names, given = None, [self._tensor]
            kind = (self._tensor.shape, self._tensor.dtype)
        replay = self._replays.get(kind)
        if replay is not None:
            result = replay(*given)[0]
        else:
            with torch.inference_mode():
                result = self._compute(names, given, kind)
        return result.numpy(force=True)

    def _compute(self, names: Sequence[str] | None, given: Sequence[torch.Tensor], kind: object) -> torch.Tensor:
        """Compute the result; if captured, remember how to replay it for other observations of this kind."""

        def run(*leaves: torch.Tensor) -> list[torch.Tensor]:
            results.append(self._function(leaves[0] if names is None else dict(zip(names, leaves, strict=True))))
            return results

        results: list[torch.Tensor] = []
        if self.captured:
            try:
                self._replays[kind] = trace(run, given)
            except Exception:
                log.warning("actions are computed eagerly, as they cannot be replayed:", exc_info=True)
                self.captured = False
                results.clear()
        return results[0] if results else run(*(leaf.to(self._device) for leaf in given))[0]
