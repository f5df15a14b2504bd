"""Traced functions: the same memory, the same random numbers, and in the same order."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import fx

from common.agents.machinery.capturing import bind, find_constant_results, simplify, trace
from tests.common.agents.machinery.recorded import names, record, record_module


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


def simplified(function: Callable[[torch.Tensor], torch.Tensor]) -> fx.GraphModule:
    module = record_module(function, torch.arange(6.0).reshape(2, 3))
    simplify(module.graph)
    module.recompile()
    return module


def test_forms_of_a_call_that_tracing_tries_give_no_warnings() -> None:
    torch.set_warn_always(True)  # torch usually warns once in a process: another test may have seen the warning.
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        trace(lambda x: [torch.nn.functional.rms_norm(x, (3,), torch.ones(3), 1e-6)], [torch.ones(2, 3)])
    torch.set_warn_always(False)
    assert not shown


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


@pytest.mark.parametrize(
    "count",
    [
        lambda: torch.arange(3),
        lambda: torch.arange(1, 4),
        lambda: torch.arange(1, 7, 2),
        lambda: torch.linspace(-1, 1, 3),
    ],
)
def test_numbers_at_equal_distances_are_constant(count: Callable[[], torch.Tensor]) -> None:
    module = simplified(lambda x: x + (count() + 0.5) / 3)
    found = list(find_constant_results(module.graph).values())
    assert torch.equal(found[-1], (count() + 0.5) / 3)
    x = torch.ones(2, 3)
    assert torch.equal(module(x)[0], x + found[-1])


def test_a_tensor_that_is_changed_later_or_returned_is_not_constant() -> None:
    assert not find_constant_results(simplified(lambda x: torch.zeros_like(x).add_(x)).graph)
    assert not find_constant_results(simplified(lambda x: torch.zeros_like(x).view(6).add_(1)).graph)
    assert not find_constant_results(simplified(lambda x: torch.arange(6.0).add_(x.view(6))).graph)
    assert not find_constant_results(simplified(torch.zeros_like).graph)


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


def test_operations_of_autograd_are_recorded_and_profiler_marks_are_not() -> None:
    weight = torch.ones(2, requires_grad=True)

    def learn(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.profiler.record_function("a mark"):
            return list(torch.autograd.grad((weight * x).sum(), [weight]))

    recorder = record(learn, torch.ones(2))
    assert names(recorder.graph) == ["mul", "sum", "ones_like", "expand", "mul"]
    assert [value is weight for value in recorder.outside.values()] == [True]


@pytest.mark.parametrize("inference", [True, False])
def test_operations_that_return_their_argument_unchanged_are_left_out(*, inference: bool) -> None:
    with torch.inference_mode(inference):
        recorder = record(lambda x: [x.float().flatten(1).contiguous().mul_(2), x], torch.ones(2, 3))
    assert names(recorder.graph) == ["mul_"]


def test_gradients_are_handed_over_without_a_copy() -> None:
    weight = torch.ones(2, requires_grad=True)

    def learn(x: torch.Tensor) -> list[torch.Tensor]:
        (weight * x).sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        return [weight.grad]

    assert not {"copy_", "clone"} & {*names(record(learn, torch.ones(2)).graph)}


def test_numbers_made_by_the_function_are_the_same_in_each_call_also_where_it_changes_them() -> None:
    replay = trace(lambda x: [torch.tensor([1.0, 2.0]).add_(x)], [torch.ones(2)])
    assert [replay(torch.ones(2))[0].tolist() for _ in range(2)] == [[2, 3], [2, 3]]


def test_each_of_several_results_is_used_apart() -> None:
    replay = trace(lambda x: [*torch.max(x, 0), *torch.split(x, 1)], [torch.zeros(2)])
    assert [result.tolist() for result in replay(torch.tensor([3.0, 5.0]))] == [5, 1, [3], [5]]


def test_a_result_may_be_an_input_or_a_value_from_outside() -> None:
    outside = torch.zeros(1)
    replay = trace(lambda x: [x, outside, outside.add_(x)], [torch.ones(1)])
    assert [result.tolist() for result in replay(torch.full((1,), 2.0))] == [[2], [3], [3]]


@pytest.mark.parametrize("take", [lambda x: x.sum().item(), lambda x: bool(x.sum() > 0), lambda x: x.equal(x)])
@pytest.mark.parametrize("inference", [True, False])
def test_a_number_taken_from_a_tensor_is_refused(take: Callable[[torch.Tensor], object], *, inference: bool) -> None:
    with torch.inference_mode(inference), pytest.raises(TypeError, match=r"takes the number .* from a tensor"):
        record(lambda x: [x, torch.tensor(take(x))], torch.ones(2))
