"""How an agent computes its updates: eagerly, or replayed without the Python that leads to each operation.

What autograd, the optimiser and ``nn.Module`` do in Python costs a small network more than its arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import Field

from common.agents.tracing import Traced, trace
from common.settings import Settings

log = logging.getLogger(__name__)
Tensors = Mapping[str, torch.Tensor]
Results = dict[str, torch.Tensor]


class UpdateConfig(Settings):
    """What every agent of networks can choose."""

    update: Literal["eager", "captured"] | None = Field(
        None,
        description="How an update is computed: eager; captured, the same operations replayed, with the same results "
        "and faster, on a CPU those of acting too; null: captured, but eager with a network of your own. One whose "
        "Python does the same in each call may be captured.",
    )

    @property
    def is_eager(self) -> bool:
        """Whether updates and actions are computed eagerly."""
        return self._has_own_network() if self.update is None else self.update == "eager"

    def _has_own_network(self) -> bool:
        """Whether a network is a user's own, whose Python may take another way from call to call."""
        return False


class Update:
    """A function that learns from a batch: columns ``[B, *shape]`` in, named results out.

    The first call is eager, since optimisers make their state in it; the second one traces, and what comes after are
    replays. A batch of other columns, shapes or dtypes is traced anew.

    Args:
        function: changes networks and optimisers in place.
        config: says how.
    """

    def __init__(self, function: Callable[[Tensors], Results], config: UpdateConfig) -> None:
        self._function, self._is_eager = function, config.is_eager
        self.reset()

    def reset(self) -> None:
        """Forget what was traced: optimisers have got other state than it refers to."""
        self._is_warm = False
        self._replays: dict[tuple[object, ...], Callable[[Tensors], Results]] = {}

    def __call__(self, batch: Tensors) -> Results:
        if self._is_eager or not self._is_warm:
            self._is_warm = True
            return self._function(batch)
        kind = (*batch, *((column.shape, column.dtype) for column in batch.values()))
        replay = self._replays.get(kind)
        if replay is not None:
            return replay(batch)
        results, self._replays[kind] = self._trace(batch)
        return results

    def _trace(self, batch: Tensors) -> tuple[Results, Callable[[Tensors], Results]]:
        """The results for this batch, and what gives them for others of its kind."""
        results: Results = {}

        def listed(*columns: torch.Tensor) -> list[torch.Tensor]:
            results.update(self._function(dict(zip(batch, columns, strict=True))))
            return list(results.values())

        try:
            replay: Traced = trace(listed, list(batch.values()))
        except Exception:
            log.warning("updates stay eager, as they cannot be captured:", exc_info=True)
            return results or self._function(batch), self._function  # Results: it had been computed already.
        names = tuple(results)
        return results, lambda again: dict(zip(names, replay(*again.values()), strict=True))
