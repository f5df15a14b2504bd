from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from common.agents.machinery.gradient_step import (
    descend,
    discount_of,
    draw,
    draw_transitions,
    measure_td_error,
    report_td_error,
    to_tensors,
    track,
)
from common.agents.machinery.optimizers import (
    adam,
)
from common.errors import ConfigError
from crossborder.testing import ItemMemory
from tests.common.agents.parts import WeightedMemory, copies, same

CPU = torch.device("cpu")
ROWS = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}


def test_columns_become_tensors_of_the_same_values_and_dtypes() -> None:
    items = {"a": np.array([[1, 2]], np.uint8), "b": np.array([True])}
    tensors = to_tensors(items, CPU)
    assert {name: (t.dtype, t.tolist()) for name, t in tensors.items()} == {
        "a": (torch.uint8, [[1, 2]]),
        "b": (torch.bool, [True]),
    }


def test_columns_in_another_order_become_tensors_in_c_order() -> None:
    """A captured update replays operations that take them so."""
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for column in (rows.transpose(0, 2, 1), rows[:, :, ::-1], rows[:, ::2]):
        tensor = to_tensors({"x": column}, CPU)["x"]
        assert tensor.is_contiguous()
        assert tensor.tolist() == column.tolist()


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


def test_a_step_changes_the_optimizers_parameters_and_no_others_in_the_graph() -> None:
    mine, other = nn.Linear(2, 2), nn.Linear(2, 1)
    before, untouched = copies(mine), copies(other)
    descend(other(mine(torch.ones(3, 2))).sum(), torch.optim.SGD(mine.parameters(), lr=0.1))
    assert not same(copies(mine), before)
    assert same(copies(other), untouched)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_a_step_leaves_parameters_without_gradients_as_they_are() -> None:
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    weight, bias = copies(net)
    found = descend(net(torch.ones(3, 2)).sum(), adam(net.parameters(), lr=0.1), max_grad_norm=10)
    assert found["grad_norm"].item() == pytest.approx(3 * math.sqrt(2))
    assert torch.equal(net.weight, weight)
    assert not torch.equal(net.bias, bias)


def test_a_second_step_does_not_add_the_first_steps_gradients() -> None:
    value = nn.Parameter(torch.tensor(5.0))
    optimizer = torch.optim.SGD([value], lr=1.0)
    for _ in range(2):
        descend(3 * value, optimizer)
    assert value.item() == 5.0 - 3.0 - 3.0


@pytest.mark.parametrize(
    ("limit", "norm", "moved"),
    [(None, {}, 30.0), (2.0, {"grad_norm": 30.0}, 2.0), (50.0, {"grad_norm": 30.0}, 30.0)],
)
def test_gradients_above_the_limit_are_clipped_and_their_norm_is_returned(
    limit: float | None, norm: dict[str, float], moved: float
) -> None:
    value = nn.Parameter(torch.tensor(0.0))
    found = descend(30 * value, torch.optim.SGD([value], lr=1.0), limit)
    assert found == norm
    assert value.item() == pytest.approx(-moved)


@pytest.mark.parametrize("tau", [0.005, 0.5, 1.0])
def test_the_target_moves_by_its_share_of_the_way(tau: float) -> None:
    target, online = nn.Linear(3, 2), nn.Linear(3, 2)
    slow = [(1 - tau) * old + tau * new for old, new in zip(copies(target), copies(online), strict=True)]
    kept = copies(online)
    track(target, online, tau)
    torch.testing.assert_close(copies(target), slow)
    assert same(copies(online), kept)
    assert tau < 1 or same(copies(target), kept)


def test_buffers_of_the_target_are_copies_whatever_the_share() -> None:
    target, online = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    online(torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    track(target, online, 0.005)
    assert target.running_mean is not None
    assert online.running_mean is not None
    assert torch.equal(target.running_mean, online.running_mean)
    assert target.running_mean.tolist() != [0.0, 0.0]
