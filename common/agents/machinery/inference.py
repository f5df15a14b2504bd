"""Applies an agent's networks to observations; on a CPU this can be captured, as updates can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from common.agents.machinery.capturing import Traced, trace
from common.data import Array, Leaves
from common.errors import PluginError

log = logging.getLogger(__name__)


class Inference:
    """A function of n observations that takes and gives arrays, for use in ``Agent.sample``.

    If it is captured, its first call for a shape and dtype is traced, and later calls replay the traced operations. The
    results are those of eager calls bit for bit: random numbers are drawn again, and parameters have their present
    values.

    If an agent acts for some of its lanes, it gives them as ``lanes``, ``[n]``. Their number may differ from call to
    call, so their rows are padded to 1, 2, 4, 8, … rows, and there are only so many traces.

    Args:
        function: from observations, a tensor or for structured spaces a dict of tensors, to a tensor; changes nothing
            but the state of random generators.
        device: where the function computes; it is captured only on a CPU.
        captured: whether the function is captured; see ``Update`` for the functions that can be.
        noise: draws random numbers for these lanes, ``[n]`` to ``[n, M]``. In calls with ``lanes`` they are the
            function's second argument, a tensor. None: the function draws no random numbers.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        device: torch.device,
        *,
        captured: bool = False,
        noise: Callable[[Array], Array] | None = None,
    ) -> None:
        self._function, self._device, self._noise = function, device, noise
        self.captured = captured and device.type == "cpu"
        self._replays: dict[object, Traced] = {}
        self._array = np.empty(0)  # The observations of the last call, and ``_tensor`` over the same memory.
        self._tensor = torch.from_numpy(self._array)

    def __call__(self, obs: Leaves, lanes: Array | None = None) -> Array:
        if lanes is not None:
            return self._compute_padded(obs, lanes)
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

    def _compute_padded(self, obs: Leaves, lanes: Array) -> Array:
        """Compute the results for these lanes, padded to a number of rows that is a power of two."""
        n = len(lanes)
        size = 1 << (n - 1).bit_length()
        names = tuple(obs) if isinstance(obs, dict) else None
        rows = list(obs.values()) if isinstance(obs, dict) else [obs]
        if self._noise is not None:
            rows.append(self._noise(lanes))
        given = [_pad(column, n, size) for column in rows]
        kind = (names, self._noise is not None, *((column.shape, column.dtype) for column in given))
        replay = self._replays.get(kind)
        if replay is not None:
            return replay(*given)[0].numpy(force=True)[:n]
        with torch.inference_mode():
            return self._compute(names, given, kind).numpy(force=True)[:n]

    def _compute(self, names: Sequence[str] | None, given: Sequence[torch.Tensor], kind: object) -> torch.Tensor:
        """Compute the result; if captured, remember how to replay it for other observations of this kind.

        Args:
            names: the paths of the leaves; None: there is one leaf, the observations themselves.
            given: the leaves, and then the noise if there is any.
            kind: the names, shapes and dtypes.
        """

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            n = 1 if names is None else len(names)
            obs = tensors[0] if names is None else dict(zip(names, tensors[:n], strict=True))
            results.append(self._function(obs, *tensors[n:]))
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


def _pad(rows: Array, n: int, size: int) -> torch.Tensor:
    """Pad n rows with copies of the last one.

    Raises:
        PluginError: there is another number of rows.
    """
    if len(rows) != n:
        raise PluginError(f"agent.sample: expected observations for {n} lanes, one row each, found {len(rows)} rows")
    padded = np.empty((size, *rows.shape[1:]), rows.dtype)
    padded[:n], padded[n:] = rows, rows[-1]
    return torch.from_numpy(padded)
