"""What tests of several agents use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from common.data import Array, Items, Model, ModelVersion, Record
from common.interfaces import Agent
from crossborder.testing import ItemMemory

Row = tuple[Array, Any, float, Array, bool, bool]
"""obs, action, reward, next_obs, terminated, truncated."""
FIRST, SECOND = np.eye(2, dtype=np.float32)
CHAIN: list[Row] = [
    (FIRST, 0, 0.0, SECOND, False, True),  # Cut off, but the better way goes on from there.
    (FIRST, 1, 0.3, SECOND, True, False),
    (SECOND, 0, 1.0, FIRST, True, False),
    (SECOND, 1, 0.0, FIRST, True, False),
]
"""Two states with two actions; with a discount factor of 0.9 these are worth 0.9 and 0.3, and 1 and 0."""
CATEGORICAL: dict[str, Any] = {"critic": {"kind": "categorical", "v_min": -8, "v_max": 2, "n_atoms": 41}}
CROSSQ: dict[str, Any] = {"normalization": "batch", "targets": False, "optimizer": {"betas": (0.5, 0.999)}}
CRITICS: dict[str, dict[str, Any]] = {
    "categorical": CATEGORICAL,
    "categorical, each its own target": CATEGORICAL | {"target_critics": "own"},
    "quantiles (TQC)": {"critic": {"kind": "quantile", "n_quantiles": 9, "n_dropped": 1}},
    "two of five critics (REDQ)": {"n_critics": 5, "n_target_critics": 2},
    "no targets (CrossQ)": CROSSQ | {"critic_units": (96,)},
    "residual blocks (SimBa)": {"architecture": "simba", "units": (16,), "critic_units": (16, 16)},
    "batch-normalised blocks, unit weights (FlashSAC)": CATEGORICAL
    | {"architecture": "flash", "unit_weights": True, "units": (16,), "critic_units": (16, 16)},
    "imitation (TD3+BC)": {"imitation": 0.01},
    "LayerNorm, SiLU, AdamW": {"normalization": "layer", "activation": "silu", "optimizer": {"kind": "adamw"}},
}
"""Settings of SAC and TD3 by what they make of the critics."""
CHECKED_CRITICS = (
    *("categorical", "quantiles (TQC)", "no targets (CrossQ)"),
    "batch-normalised blocks, unit weights (FlashSAC)",
)
"""Those whose outputs, networks or statistics are of a kind of their own: ``check_agent`` tries them."""


def items_of(rows: Sequence[Row], action_dtype: type = np.int64, **more: Array) -> Items:
    """The rows as columns, with ``more`` of them."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    dtypes = (np.float32, action_dtype, np.float32, np.float32, np.bool_, np.bool_)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    parts = zip(names, columns, dtypes, strict=True)
    return {name: np.array(column, dtype) for name, column, dtype in parts} | more


def holding(rows: Sequence[Row], action_dtype: type = np.int64, **more: Array) -> ItemMemory:
    """A memory of rows, with ``more`` columns."""
    return ItemMemory(items_of(rows, action_dtype, **more))


class Whole(ItemMemory):
    """A memory that gives all of its items in each batch."""

    def batch(self, size: int) -> Items:
        self.sampled += size
        return self._items


class WeightedMemory(ItemMemory):
    """A prioritised buffer that gives all of its items, numbered from 70, with these weights; keeps what it is told."""

    is_uniform = False

    def __init__(self, items: Items, weights: Sequence[float]) -> None:
        super().__init__(items)
        self._weights = np.array(weights, np.float32)
        self.told: list[tuple[list[int], list[float]]] = []

    def batch(self, size: int) -> Items:
        self.sampled += size
        return {**self._items, "index": 70 + np.arange(len(self)), "weight": self._weights}

    def update_priority(self, index: Array, td_error: Array) -> None:
        self.told.append((index.tolist(), td_error.tolist()))


def copies(net: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def floats(record: Record | None) -> dict[str, float]:
    """The record of an opt step that learnt."""
    assert record is not None
    return {name: float(value) for name, value in record.items()}


def model_of(agent: Agent, opt_steps: int = 5) -> Model:
    """What a learner would publish."""
    return Model(ModelVersion(1, opt_steps), {name: value.numpy().copy() for name, value in agent.model_info().items()})


def assert_same_state(one: Agent, other: Agent) -> None:
    """All that their checkpoints would hold is equal, bit for bit."""
    expected, found = one.training_state(), other.training_state()
    assert expected.tensors.keys() == found.tensors.keys()
    assert [name for name, tensor in expected.tensors.items() if not torch.equal(tensor, found.tensors[name])] == []
    assert json.dumps(expected.values) == json.dumps(found.values)


@torch.no_grad()
def fix_outputs(net: nn.Module, *outputs: float) -> None:
    """Make a network without hidden layers give ``outputs`` whatever it is asked."""
    weight, bias = net.parameters()
    weight.zero_()
    bias.copy_(torch.tensor(outputs))


class Structured(gymnasium.Env[Any, Any]):
    """Random observations and rewards; episodes of seven steps, each second one truncated."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ends, is_second = self.steps % 7 == 0, self.steps % 14 == 0
        return self.observation_space.sample(), float(self.steps % 3), ends and not is_second, ends and is_second, {}
