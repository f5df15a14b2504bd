"""Which operations are dropped from a graph, and which results count as constant."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from common.agents.machinery.simplifying import find_constant_results, simplify
from tests.common.agents.machinery.recorded import names, record_module


def simplified(function: Callable[[torch.Tensor], torch.Tensor]) -> fx.GraphModule:
    module = record_module(function, torch.arange(6.0).reshape(2, 3))
    simplify(module.graph)
    module.recompile()
    return module


def test_views_that_change_nothing_are_dropped() -> None:
    assert names(simplified(lambda x: x.view(2, 3).detach().t().t() + 1).graph) == ["add"]


def test_a_sum_drops_its_dimension_where_it_is_dropped_right_after() -> None:
    module = simplified(lambda x: x.sum(0, keepdim=True).view(3))
    assert names(module.graph) == ["sum"]
    assert module(torch.ones(2, 3))[0].tolist() == [2, 2, 2]


def test_a_sum_over_another_dimension_keeps_its_view() -> None:
    module = simplified(lambda x: x.sum(1, keepdim=True).view(2))
    assert module(torch.ones(2, 3))[0].tolist() == [3, 3]


def test_a_sum_that_is_used_with_its_dimension_too_keeps_it() -> None:
    def add_twice(x: torch.Tensor) -> torch.Tensor:
        total = x.sum(0, keepdim=True)
        return total.t() + total.view(3)

    module = simplified(add_twice)
    assert module(torch.arange(6.0).reshape(2, 3))[0].tolist() == [[6, 8, 10], [8, 10, 12], [10, 12, 14]]


def test_filled_tensors_and_what_is_computed_of_them_alone_are_constant() -> None:
    module = simplified(lambda x: x + (torch.ones_like(x) / 4).expand(2, 3))
    assert [value.tolist() for value in find_constant_results(module.graph).values()][-1] == [[0.25] * 3] * 2


def test_a_tensor_that_is_changed_later_or_returned_is_not_constant() -> None:
    assert not find_constant_results(simplified(lambda x: torch.zeros_like(x).add_(x)).graph)
    assert not find_constant_results(simplified(lambda x: torch.zeros_like(x).view(6).add_(1)).graph)
    assert not find_constant_results(simplified(torch.zeros_like).graph)
