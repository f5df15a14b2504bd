"""Our Adam takes torch's steps, bit for bit."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from common.agents.machinery.adam import Adam


def make_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (3,), ())]


def set_gradients(parameters: list[nn.Parameter], step: int) -> None:
    """Give all parameters a gradient but the last, which has one in every second step only."""
    for i, parameter in enumerate(parameters):
        has_gradient = i < 2 or step % 2 == 1
        parameter.grad = torch.full_like(parameter, 0.1 * (i + step)).sin() if has_gradient else None


def take_steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], first: int = 0) -> None:
    for step in range(first, first + 4):
        set_gradients(parameters, step)
        optimizer.step()


def test_steps_are_those_of_torch_also_where_a_gradient_is_missing() -> None:
    ours, theirs = make_parameters(), make_parameters()
    optimizers = Adam(ours, 0.1, eps=1e-5), torch.optim.Adam(theirs, lr=0.1, eps=1e-5, fused=True)
    take_steps(optimizers[0], ours)
    take_steps(optimizers[1], theirs)
    assert [value.tolist() for value in ours] == [value.tolist() for value in theirs]
    states = [
        [float(optimizer.state[p]["step"]) for p in optimizer.param_groups[0]["params"]] for optimizer in optimizers
    ]
    assert states == [[4, 4, 2], [4, 4, 2]]


def test_steps_go_on_from_a_state_of_torch() -> None:
    ours, theirs = make_parameters(), make_parameters()
    expected = torch.optim.Adam(theirs, lr=0.1, fused=True)
    take_steps(expected, theirs)
    optimizer = Adam(ours, 0.1)
    optimizer.load_state_dict(deepcopy(expected.state_dict()))
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            mine.copy_(other)
    take_steps(optimizer, ours, 4)
    take_steps(expected, theirs, 4)
    assert [value.tolist() for value in ours] == [value.tolist() for value in theirs]
