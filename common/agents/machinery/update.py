"""How an agent computes its updates: eagerly, or captured, that is without the Python around each operation.

For a small network the Python of autograd, the optimiser and ``nn.Module`` costs more than the arithmetic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from common.agents.averaging import can_be_captured
from common.agents.machinery.batches import Batch
from common.agents.machinery.capturing import Traced, trace
from common.agents.machinery.optimization import AdamConfig, OptimizerConfig
from common.errors import RankLostError
from common.settings import Settings

if TYPE_CHECKING:
    from common.agents.networks.normalization import Normalizer

log = logging.getLogger(__name__)
Results = dict[str, torch.Tensor]
"""Scalars for the record by name, and the TD errors ``[B]`` for a prioritised buffer."""


class UpdateConfig(Settings):
    """The settings that all agents with networks share; see ``NetworkAgent.captures``."""

    update: Literal["eager", "captured"] | None = Field(
        None,
        description="How updates are computed. eager: operation by operation; captured: the operations are recorded "
        "once and replayed, which is faster and gives the same results; on a CPU, acting is captured too. null: "
        "captured, but eager with your own network. Set captured for your own network if its Python code does the "
        "same in each call.",
    )
    optimizer: OptimizerConfig = Field(
        AdamConfig(), description="The optimiser of all networks, by kind: adam, adamw or rmsprop."
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def _adam_without_a_kind(cls, optimizer: object) -> object:
        return {"kind": "adam", **optimizer} if isinstance(optimizer, dict) else optimizer

    def has_own_network(self) -> bool:
        """Whether a network is a user's own, whose Python may do something else in each call."""
        return False


class Update:
    """A function that learns from a batch: columns ``[B, *shape]`` in, named results out.

    While the function runs, networks are in torch's train mode, and in eval mode afterwards. So batch normalisation
    gathers statistics and dropout drops in an update, while acting stays a fixed function. Target networks stay in
    eval mode. On a CPU denormal numbers, below 1.2e-38 in float32, count as zero: some processors compute 100 times as
    slowly with them, and the mean gradient of a unit that no longer learns becomes one.

    A captured update runs the function's Python in its first two calls only: the first is eager, since optimisers make
    their state in it, and the second is traced. Later calls replay the traced operations. A batch of other columns,
    shapes or dtypes is traced again. A value that is no tensor, such as a count that the function keeps, stays as it
    was during tracing, so capture only Python that does the same in each call; ``crossborder.check_agent`` compares
    captured updates with eager ones.

    A call that is not for the record returns no scalars, and a captured one does not compute them either.

    Args:
        function: changes networks and optimisers in place.
        nets: the agent's networks by name; the name of a target network ends in ``_tgt``.
        captured: whether the function is captured.
    """

    def __init__(
        self, function: Callable[[Batch], Results], nets: Mapping[str, nn.Module], *, captured: bool = False
    ) -> None:
        self._function, self._nets, self.captured = function, nets, captured
        self.forget_traces()

    def forget_traces(self) -> None:
        """Begin again with an eager call: the traces refer to states that the optimisers no longer have."""
        self._is_warm = False
        self._replays: dict[tuple[object, ...], Callable[[Batch], Results]] = {}

    def __call__(self, batch: Batch, *, recorded: bool = True) -> Results:
        torch.set_flush_denormal(True)  # On Intel's processors denormal numbers make Adam's step nine times as long.
        try:
            return self._compute(batch, recorded)
        finally:
            torch.set_flush_denormal(False)

    def _compute(self, batch: Batch, recorded: bool) -> Results:
        if not self.captured or not self._is_warm or not can_be_captured():
            self._is_warm = True
            return self._run(batch, recorded)
        kind = (recorded, *batch, *((column.shape, column.dtype) for column in batch.values()))
        replay = self._replays.get(kind)
        if replay is not None:
            return replay(batch)
        results, self._replays[kind] = self._trace(batch, recorded)
        return results

    def _run(self, batch: Batch, recorded: bool) -> Results:
        """Call the function, its networks in train mode; without ``recorded``, leave scalars out of its results."""
        learning = [net for name, net in self._nets.items() if not name.endswith("_tgt")]
        for net in learning:
            net.train()
        try:
            results = self._function(batch)
        finally:
            for net in learning:
                net.eval()
        return results if recorded else {name: result for name, result in results.items() if result.dim()}

    def _trace(self, batch: Batch, recorded: bool) -> tuple[Results, Callable[[Batch], Results]]:
        """Compute the results for this batch, and make the function that replays them for others of its kind."""
        computed: list[Results] = []

        def run(*columns: torch.Tensor) -> list[torch.Tensor]:
            computed.append(self._run(dict(zip(batch, columns, strict=True)), recorded))
            return list(computed[0].values())

        try:
            replay: Traced = trace(run, list(batch.values()))
        except RankLostError:
            raise  # The other ranks are gone: an eager update would fail too.
        except Exception:
            log.warning("updates stay eager, as they cannot be captured:", exc_info=True)
            # With results, tracing failed after the update was computed: computing it again would learn twice.
            results = computed[0] if computed else self._run(batch, recorded)
            return results, lambda again: self._run(again, recorded)
        names = tuple(computed[0])
        return computed[0], lambda again: dict(zip(names, replay(*again.values()), strict=True))


class NormalizeBatch(Update):
    """Merges the observations of each batch into the statistics of a normaliser, and returns the batch normalised.

    A normaliser without columns returns the batch as it is.

    Args:
        normalizer: one of the agent's networks.
        captured: whether the operations are captured, as those of any update.
        merges_first: whether the batch is normalised by statistics that include it. Otherwise an agent that learns from
            the steps of its present policy sees the numbers that the policy saw.
    """

    def __init__(self, normalizer: Normalizer, *, captured: bool = False, merges_first: bool = True) -> None:
        def learn(columns: Batch) -> Results:
            if merges_first:
                normalizer.merge(columns)
                return normalizer.normalize(columns)
            normalized = normalizer.normalize(columns)
            normalizer.merge(columns)
            return normalized

        super().__init__(learn, {}, captured=captured)
        self._normalizer = normalizer

    def __call__(self, batch: Batch, *, recorded: bool = True) -> dict[str, torch.Tensor]:
        columns = {name: column for name, column in batch.items() if name in self._normalizer.columns}
        return {**batch, **super().__call__(columns, recorded=recorded)} if self._normalizer.columns else dict(batch)
