from __future__ import annotations

import numpy as np
import pytest
import torch

from common.agents.machinery.batches import (
    discount_of,
    draw,
    draw_transitions,
    measure_td_error,
    report_td_error,
    to_tensors,
)
from common.errors import ConfigError
from crossborder.testing import ItemMemory
from tests.common.agents.parts import WeightedMemory

CPU = torch.device("cpu")
ROWS = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}


def test_columns_become_tensors_of_the_same_values_and_dtypes() -> None:
    items = {"a": np.array([[1, 2]], np.uint8), "b": np.array([True])}
    tensors = to_tensors(items, CPU)
    assert {name: (t.dtype, t.tolist()) for name, t in tensors.items()} == {
        "a": (torch.uint8, [[1, 2]]),
        "b": (torch.bool, [True]),
    }


def test_a_batch_is_drawn_as_tensors_and_counted() -> None:
    memory = ItemMemory(ROWS)
    batch = draw(memory, 5, CPU)
    assert batch["x"].shape == (5, 2)
    assert {tuple(row) for row in batch["x"].tolist()} <= {(0, 1), (2, 3), (4, 5)}
    assert memory.sampled == 5


def test_a_buffer_that_has_tensors_is_not_asked_for_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, there = ItemMemory(ROWS), {"x": torch.ones(5, 2)}
    monkeypatch.setattr(memory, "tensors", lambda _: there)
    assert draw(memory, 5, CPU) is there
    assert memory.sampled == 0


def test_an_agent_of_transitions_refuses_sequences() -> None:
    sequences = ItemMemory(ROWS | {"mask": np.ones((3, 4), np.bool_)})
    with pytest.raises(ConfigError, match=r"replay\.view: TD3 learns from transitions, but the view makes sequences"):
        draw_transitions("TD3", sequences, 2, CPU)
    assert draw_transitions("TD3", ItemMemory(ROWS), 2, CPU)["x"].shape == (2, 2)


def test_the_batchs_own_discounts_take_the_place_of_the_discount_factor() -> None:
    column = torch.tensor([0.5, 0.25])
    assert discount_of({"discount": column}, 0.9) is column
    assert discount_of({}, 0.9) == 0.9


def test_the_errors_of_several_critics_are_averaged_and_reported_without_staying_among_the_results() -> None:
    memory = WeightedMemory({"reward": np.zeros(2, np.float32)}, [1.0, 1.0])
    batch = draw(memory, 2, CPU)
    results = measure_td_error(batch, torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([4.0, 0.0]))
    report_td_error(memory, batch, results)
    assert memory.told == [([70, 71], [2.0, 2.0])]
    assert results == {}


def test_a_uniform_buffers_batch_has_no_errors_to_report() -> None:
    assert measure_td_error({}, torch.ones(2), torch.zeros(2)) == {}
