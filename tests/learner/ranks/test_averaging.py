"""Half batches of two real ranks, against the whole batch of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from common.agents.averaging import average, learns_alone, total
from common.agents.machinery.gradient_step import descend
from tests.learner.ranks.pair import descend_masked, learn

Pair = Sequence[dict[str, Any]]


@pytest.mark.parametrize("update", ["eager", "captured"])
def test_two_ranks_learn_from_half_batches_what_one_learns_from_whole_ones(update: str, pair: Pair) -> None:
    whole = learn(slice(None), "eager")
    assert pair[0]["learnt"][update] == pair[1]["learnt"][update], "bit for bit"
    for name, tensor in whole.items():
        found = np.array(pair[0]["learnt"][update][name])
        np.testing.assert_allclose(found, tensor.numpy(), rtol=2e-4, atol=2e-6, err_msg=name)


def test_a_masked_loss_is_the_mean_over_the_steps_of_all_ranks(pair: Pair) -> None:
    assert [found["masked"] for found in pair] == [pytest.approx(descend_masked(slice(None)))] * 2


def test_the_running_statistics_of_batch_normalisation_follow_the_mean_of_all_ranks(pair: Pair) -> None:
    assert [found["batch_norm"] for found in pair] == [pytest.approx([0.01 * 6, 0.99 + 0.01 * 1])] * 2


def test_alone_nothing_is_averaged() -> None:
    tensor = torch.tensor([1, 2])
    assert learns_alone()
    assert average(tensor) is tensor
    assert total(tensor) is tensor


def test_alone_a_step_is_that_of_torch_to_the_last_bit() -> None:
    nets = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    nets[1].load_state_dict(nets[0].state_dict())
    here, there = (torch.optim.Adam(net.parameters(), lr=0.1) for net in nets)
    for rows in torch.randn(4, 5, 3):
        descend(nets[0](rows).square().mean(), here)
        there.zero_grad()
        nets[1](rows).square().mean().backward()
        there.step()
    assert all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))
