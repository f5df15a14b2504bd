"""Normalises the batches that a learner draws, and learns the statistics from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from common.agents.machinery.batches import Batch
from common.agents.machinery.update import Results, Update

if TYPE_CHECKING:
    from common.agents.networks.normalization import Normalizer


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
