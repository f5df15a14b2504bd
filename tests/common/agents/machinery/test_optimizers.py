"""Processes that learn and act do not import torch.compile."""

from __future__ import annotations

import math
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch import nn

from common.agents.machinery.optimizers import Adam, RMSprop
from tests.conftest import ROOT

LEARNS_AND_ACTS = """
import sys
import torch
from common.agents.machinery.inference import Inference
from common.agents.machinery.optimization import AdamConfig, RMSpropConfig, build_optimizer
from common.agents.machinery.update import Update

net = torch.nn.Linear(2, 1)
for config in (AdamConfig(), RMSpropConfig()):
    optimizer = build_optimizer(net.parameters(), 0.1, config)

    def learn(batch):
        optimizer.zero_grad()
        loss = net(batch["obs"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    update = Update(learn, {"net": net}, captured=True)
    first, _, last = [float(update({"obs": torch.ones(4, 2)})["loss"]) for _ in range(3)]
    assert last != first
    optimizer.load_state_dict(optimizer.state_dict())
    Inference(net, torch.device("cpu"), captured=True)(torch.ones(4, 2).numpy())
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_a_process_that_learns_and_acts_captured_does_not_import_torch_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARNS_AND_ACTS], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5)])
@pytest.mark.parametrize("centered", [False, True])
def test_steps_follow_the_formula(lr: float | torch.Tensor, centered: bool) -> None:
    value = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = RMSprop([value], lr, alpha=0.75, eps=0.1, centered=centered)
    expected, square, mean = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for grads in ([3.0, -1.0], [1.0, 0.0], [-2.0, 5.0]):
        value.grad = torch.tensor(grads)
        optimizer.step()
        for i, grad in enumerate(grads):
            square[i] = 0.75 * square[i] + 0.25 * grad**2
            mean[i] = 0.75 * mean[i] + 0.25 * grad
            variance = square[i] - mean[i] ** 2 if centered else square[i]
            expected[i] -= 0.5 * grad / (math.sqrt(variance) + 0.1)
        assert value.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_constant_gradient_whose_variance_rounds_below_zero_leaves_numbers() -> None:
    value = nn.Parameter(torch.full((1000,), 0.1))
    optimizer = RMSprop([value], 1e-3, alpha=0.95, eps=1e-8, centered=True)
    for _ in range(300):
        value.grad = torch.linspace(0.01, 1, 1000)
        optimizer.step()
    assert value.isfinite().all()


def test_a_parameter_without_a_gradient_stays() -> None:
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = RMSprop([still, moved], 0.5, alpha=0.9, eps=1e-8, centered=False)
    moved.grad = torch.ones(2)
    optimizer.step()
    assert still.tolist() == [1.0, 1.0]
    assert moved[0] < 1.0


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
