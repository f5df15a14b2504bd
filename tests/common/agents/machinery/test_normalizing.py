from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from common.agents.machinery.normalizing import NormalizeBatch
from common.agents.networks.normalization import Normalizer, build_normalizer

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def batches(n: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"obs": torch.randn(4, 2, generator=generator), "next_obs": torch.ones(4, 2), "reward": torch.ones(4)}
        for _ in range(n)
    ]


def test_each_batch_is_merged_before_it_is_normalised() -> None:
    normalizer = Normalizer({"": BOX})
    for batch in batches(3):
        found = NormalizeBatch(normalizer)(batch)
        assert torch.equal(found["obs"], normalizer(batch["obs"]))
        assert torch.equal(found["next_obs"], normalizer(batch["next_obs"]))
        assert found["reward"] is batch["reward"]
    assert normalizer.count.item() == 12


def test_captured_statistics_are_the_eager_ones_bit_for_bit() -> None:
    normalizers = Normalizer({"": BOX}), Normalizer({"": BOX})
    captured, eager = (NormalizeBatch(each, captured=i == 0) for i, each in enumerate(normalizers))
    for batch in batches(6):
        assert torch.equal(captured(batch)["obs"], eager(batch)["obs"])
    for name, value in normalizers[0].state_dict().items():
        assert torch.equal(value, normalizers[1].state_dict()[name])


def test_one_that_is_not_enabled_leaves_batches_alone() -> None:
    batch = batches(1)[0]
    assert NormalizeBatch(build_normalizer({"": BOX}, enabled=False), captured=True)(batch) == batch
