"""Operations are called by functions that make the very same call."""

from __future__ import annotations

import torch

from common.agents.machinery.binding import bind
from tests.common.agents.machinery.recorded import record_module


def test_a_function_with_other_defaults_is_given_those_of_the_operation() -> None:
    x = torch.linspace(-3, 3, 7)
    module = record_module(lambda x: torch.nn.functional.smooth_l1_loss(x, 2 * x), x)
    expected = module(x)
    bind(module.graph)
    module.recompile()
    assert torch._C._nn.smooth_l1_loss in [node.target for node in module.graph.nodes]
    assert module(x) == expected


def test_a_cast_is_bound_under_its_other_name() -> None:
    module = record_module(lambda x: (x > 0).float(), torch.linspace(-3, 3, 7))
    bind(module.graph)
    assert torch.Tensor.to in [node.target for node in module.graph.nodes]


def test_a_random_operation_stays() -> None:
    module = record_module(torch.bernoulli, torch.zeros(3))
    before = [node.target for node in module.graph.nodes]
    bind(module.graph)
    assert [node.target for node in module.graph.nodes] == before
