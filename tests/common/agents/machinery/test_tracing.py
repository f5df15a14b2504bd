"""Traced functions: the same memory, the same random numbers, and in the same order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from common.agents.machinery.tracing import trace


def test_memory_is_changed_and_random_numbers_are_drawn_as_by_the_function() -> None:
    def compute(total: torch.Tensor, generator: torch.Generator, x: torch.Tensor) -> list[torch.Tensor]:
        y = (2 * x + 1).relu()
        total.add_(y.sum())
        noise = torch.randn(x.shape, generator=generator)
        return [(y.t() * noise.t()).tanh().detach(), total.clone()]

    inputs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected_total, expected_generator = torch.zeros(()), torch.Generator().manual_seed(0)
    total, generator = torch.zeros(()), torch.Generator().manual_seed(0)
    traced = trace(lambda x: compute(total, generator, x), inputs[:1])
    compute(expected_total, expected_generator, inputs[0])
    for x in inputs[1:]:
        expected = compute(expected_total, expected_generator, x)
        torch.testing.assert_close(traced(x), expected, rtol=0, atol=0)
    assert torch.equal(generator.get_state(), expected_generator.get_state())


def test_results_do_not_change_when_it_is_called_again() -> None:
    traced = trace(lambda x: [x + 1], [torch.zeros(2)])
    first = traced(torch.zeros(2))
    traced(torch.ones(2))
    assert first[0].tolist() == [1, 1]


def add_to_a_part(x: torch.Tensor) -> list[torch.Tensor]:
    zeros = torch.zeros(4)
    first, _ = zeros.chunk(2)
    first.add_(x)
    return [zeros.clone()]


def add_to_one_of_several_results(x: torch.Tensor) -> list[torch.Tensor]:
    values = torch.zeros(2).sort().values
    values.add_(x)
    return [values.clone()]


def add_to_a_product(x: torch.Tensor) -> list[torch.Tensor]:
    product = torch.ones(1, 2, 3) @ torch.ones(3)
    product.add_(x)
    return [product.clone()]


@pytest.mark.parametrize("function", [add_to_a_part, add_to_one_of_several_results, add_to_a_product])
def test_memory_that_a_function_fills_itself_is_filled_in_each_call(
    function: Callable[[torch.Tensor], list[torch.Tensor]],
) -> None:
    x = torch.ones(2)
    traced, expected = trace(function, [x]), function(x)
    for _ in range(2):
        torch.testing.assert_close(traced(x), expected, rtol=0, atol=0)


def test_an_operation_whose_function_has_other_defaults_keeps_its_own() -> None:
    def losses(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.mse_loss(x, 2 * x), torch.nn.functional.smooth_l1_loss(x, 2 * x)]

    x = torch.linspace(-3, 3, 7)
    assert trace(losses, [x])(x) == losses(x)


def test_an_operation_that_fails_on_zeros_is_traced_too() -> None:
    def remainder(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.remainder(7 * x, x), torch.floor_divide(x, x)]

    x = torch.arange(1, 5)
    assert [result.tolist() for result in trace(remainder, [x])(x)] == [result.tolist() for result in remainder(x)]
