"""Recorded graphs: all operations, the values from outside, and none that would be another in another call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from common.agents.machinery.capturing import trace
from tests.common.agents.machinery.recorded import names, record


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
