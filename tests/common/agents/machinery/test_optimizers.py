"""Processes that learn and act do not import torch.compile."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common.agents.machinery.gradient_step import descend
from common.agents.machinery.optimizers import (
    Adam,
    AdamConfig,
    AdamWConfig,
    OptimizerConfig,
    RMSprop,
    RMSpropConfig,
    ScheduleConfig,
    adam,
    build_optimizer,
    limited,
)
from common.agents.machinery.update import Update, UpdateConfig
from common.agents.network_agent import collect_optimizer, load_optimizer
from common.agents.networks.noisy import NoisyLinear
from common.errors import ConfigError
from common.settings import validate
from tests.common.agents.parts import copies, same
from tests.conftest import Command


def test_the_first_step_of_adam_has_the_length_of_the_learning_rate() -> None:
    value = nn.Parameter(torch.tensor([1.0, 1.0]))
    descend((value * torch.tensor([3.0, -0.1])).sum(), adam([value], lr=0.25))
    torch.testing.assert_close(value.detach(), torch.tensor([0.75, 1.25]))


KINDS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam", "betas": (0.5, 0.9), "eps": 1e-5},
    "adam, linear": {"kind": "adam", "schedule": {"steps": 4, "final": 0.25}},
    "adamw, cosine with a warm-up": {"kind": "adamw", "schedule": {"kind": "cosine", "steps": 5, "warmup": 2}},
    "rmsprop": {"kind": "rmsprop"},
    "rmsprop, centred, warm-up": {
        "kind": "rmsprop",
        "centered": True,
        "schedule": {"kind": "constant", "warmup": 4},
    },
}


def config_of(kind: str) -> OptimizerConfig:
    return validate(UpdateConfig, {"optimizer": KINDS[kind]}).optimizer


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def make_update(net: nn.Module, optimizer: torch.optim.Optimizer, *, captured: bool = False) -> Update:
    def learn(batch: Any) -> dict[str, torch.Tensor]:
        loss = net(batch["x"]).square().mean()
        descend(loss, optimizer)
        return {"loss": loss.detach()}

    return Update(learn, {"net": net}, captured=captured)


def batches(n: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(5, 3, generator=generator)} for _ in range(n)]


def test_the_default_is_adam_as_it_was_before_there_was_a_choice() -> None:
    mine, plain = make_net(), make_net()
    updates = [
        make_update(mine, build_optimizer(mine.parameters(), 1e-2, UpdateConfig().optimizer)),
        make_update(plain, adam(plain.parameters(), 1e-2)),
    ]
    for batch in batches(5):
        assert updates[0](batch) == updates[1](batch)
    assert same(copies(mine), copies(plain))


def test_settings_without_a_kind_are_those_of_adam() -> None:
    assert validate(UpdateConfig, {"optimizer": {"eps": 1e-5}}).optimizer == AdamConfig(eps=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        ({"schedule": {"kind": "cosine"}}, "steps: expected more than those of the warm-up"),
        ({"schedule": {"steps": 10, "warmup": 10}}, "steps: expected more than those of the warm-up"),
        ({"weight_decay": 0.1}, "optimizer.weight_decay: unknown key"),
        ({"kind": "sgd"}, "adam"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(optimizer: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        validate(UpdateConfig, {"optimizer": optimizer})


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_optimizer_learns_as_an_eager_one_bit_for_bit(kind: str) -> None:
    nets = make_net(), make_net()
    updates = [
        make_update(net, build_optimizer(net.parameters(), 1e-2, config_of(kind)), captured=captured)
        for net, captured in zip(nets, (True, False), strict=True)
    ]
    for batch in batches(8):
        assert updates[0](batch) == updates[1](batch)
    assert same(copies(nets[0]), copies(nets[1]))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_optimizer_goes_on_as_if_it_had_never_stopped(kind: str, captured: bool) -> None:
    net, config, columns = make_net(), config_of(kind), batches(8)
    optimizer = build_optimizer(net.parameters(), 1e-2, config)
    update = make_update(net, optimizer, captured=captured)
    for batch in columns[:4]:
        update(batch)
    again = make_net()
    again.load_state_dict(net.state_dict())
    resumed = build_optimizer(again.parameters(), 1e-2, config)
    load_optimizer(resumed, {f"o.{name}": value for name, value in collect_optimizer(optimizer).items()}, "o.")
    goes_on = make_update(again, resumed, captured=captured)
    for batch in columns[4:]:
        assert goes_on(batch) == update(batch)
    assert same(copies(again), copies(net))


def gathered(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {f"o.{name}": value for name, value in collect_optimizer(optimizer).items()}


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_what_another_optimizer_has_gathered_is_refused_by_name(before: str, after: str) -> None:
    net = make_net()
    old, new = (build_optimizer(net.parameters(), 1e-2, config_of(kind)) for kind in (before, after))
    load_optimizer(new, gathered(old), "o.")
    make_update(net, old)(batches(1)[0])
    if before.startswith("adam") == after.startswith("adam") and ("centred" in before) == ("centred" in after):
        load_optimizer(new, gathered(old), "o.")
        assert gathered(new).keys() == gathered(old).keys()
    else:
        with pytest.raises(ValueError, match=r"^o: expected .*step.*, found .*, which another agent\.params\.optim"):
            load_optimizer(new, gathered(old), "o.")


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_a_resumed_optimizer_counts_on_its_parameters_device(kind: str) -> None:
    """Elsewhere, an update with a schedule cannot be captured on a GPU."""
    net, there = make_net(), make_net().to("meta")
    old, new = (build_optimizer(each.parameters(), 1e-2, config_of(kind)) for each in (net, there))
    make_update(net, old)(batches(1)[0])
    load_optimizer(new, gathered(old), "o.")
    assert {value.device.type for value in gathered(new).values()} == {"meta"}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_a_limited_parameter_comes_back_from_its_limits(kind: str, captured: bool) -> None:
    value = limited(torch.zeros(1), -2.0, -1.0)
    assert value.item() == -1.0
    optimizer = build_optimizer([value], 0.5, config_of(kind))

    def learn(batch: Any) -> dict[str, torch.Tensor]:
        descend((value.clamp(-2.0, -1.0) * batch["way"]).sum(), optimizer)
        return {"value": value.detach().sum()}

    update = Update(learn, {}, captured=captured)
    found = [update({"way": torch.tensor([way])})["value"].item() for way in (-1.0,) * 3 + (1.0,) * 20]
    assert found[:3] == [-1.0] * 3
    assert -1.5 > min(found) >= -2.0


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"kind": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        ({"steps": 4}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ({"steps": 4, "final": 0.5}, [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]),
        ({"steps": 4, "warmup": 2}, [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]),
        ({"kind": "cosine", "steps": 4}, [(1 + math.cos(math.pi * t / 4)) / 2 for t in (0, 1, 2, 3, 4, 4)]),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: dict[str, Any], rates: list[float]) -> None:
    value = nn.Parameter(torch.zeros(1))
    optimizer = build_optimizer([value], 0.5, AdamConfig(schedule=ScheduleConfig(**schedule)))
    found = []
    for _ in rates:
        descend(value.sum(), optimizer)
        found.append(float(optimizer.param_groups[0]["lr"]))
    assert found == pytest.approx([0.5 * rate for rate in rates], abs=1e-7)


def test_a_parameter_without_gradients_does_not_hold_the_schedule_back() -> None:
    idle, value = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = build_optimizer([idle, value], 1.0, AdamConfig(schedule=ScheduleConfig(steps=2)))
    for _ in range(3):
        optimizer.zero_grad()
        value.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(optimizer.param_groups[0]["lr"]) == 0.0


def test_adamw_is_torchs_for_weights_and_leaves_biases_alone() -> None:
    mine, theirs = make_net(), make_net()
    optimizer = build_optimizer(mine.parameters(), 0.1, AdamWConfig(weight_decay=0.5))
    decaying = [parameter for parameter in theirs.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in theirs.parameters() if parameter.dim() == 1]
    reference = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}], lr=0.1
    )
    for batch in batches(5):
        descend(mine(batch["x"]).square().mean(), optimizer)
        descend(theirs(batch["x"]).square().mean(), reference)
    torch.testing.assert_close(copies(mine), copies(theirs))


def test_adamw_leaves_the_sizes_of_exploration_noise_alone() -> None:
    noisy = NoisyLinear(nn.Linear(2, 3), 0.5)
    before = {name: value.clone() for name, value in noisy.state_dict().items()}
    optimizer = build_optimizer(noisy.parameters(), 0.1, AdamWConfig(weight_decay=0.5))
    zeros = [0 * parameter.sum() for parameter in noisy.parameters()]
    descend(torch.stack(zeros).sum(), optimizer)
    expected = before | {"layer.weight": 0.95 * before["layer.weight"]}
    torch.testing.assert_close(dict(noisy.state_dict()), expected)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_is_torchs(centered: bool) -> None:
    mine, theirs = make_net(), make_net()
    optimizer = build_optimizer(mine.parameters(), 1e-2, RMSpropConfig(alpha=0.9, eps=0.01, centered=centered))
    reference = torch.optim.RMSprop(theirs.parameters(), lr=1e-2, alpha=0.9, eps=0.01, centered=centered)
    for batch in batches(5):
        descend(mine(batch["x"]).square().mean(), optimizer)
        descend(theirs(batch["x"]).square().mean(), reference)
    torch.testing.assert_close(copies(mine), copies(theirs))


LEARNS_AND_ACTS = """
import sys
import torch
from common.agents.machinery.update import Inference
from common.agents.machinery.optimizers import AdamConfig, RMSpropConfig, build_optimizer
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


def test_a_process_that_learns_and_acts_captured_does_not_import_torch_compile(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "learns_and_acts.py").write_text(LEARNS_AND_ACTS)
    process = start("learns_and_acts", cwd=tmp_path)
    assert (process.wait(), process.output()) == (0, "[]\n")


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
