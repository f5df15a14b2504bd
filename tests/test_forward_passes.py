"""docs/protocol.md says how a model becomes actions: here by numpy alone, and it agrees with the agents."""

from __future__ import annotations

from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from common.agents.dqn import DQN
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.data import Array
from common.interfaces import Agent, EnvSpec
from common.spaces import flatten

BOX = spaces.Box(-1, 1, (3, 2), np.float32)
DICT = spaces.Dict({"state": BOX, "gear": spaces.Discrete(4, start=2), "switches": spaces.MultiDiscrete([2, 3])})
FOUR = spaces.MultiDiscrete([2, 2])
ARM = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
N = 5


def tensors(agent: Agent) -> dict[str, Array]:
    return {name: value.numpy() for name, value in agent.model_info().items()}


def layers(model: dict[str, Array], prefix: str, x: Array) -> Array:
    """``layers.1``, ``layers.3``, … with ReLU between them."""
    for i in count(1, 2):
        if f"{prefix}layers.{i}.weight" not in model:
            return x
        x = np.maximum(x, 0) if i > 1 else x
        x = x @ model[f"{prefix}layers.{i}.weight"].T + model[f"{prefix}layers.{i}.bias"]
    raise AssertionError("never")


def encode(model: dict[str, Array], obs: Any, prefix: str) -> Array:
    """The features of the leaves of ``DICT``, in the order of its sorted keys: gear, state, switches."""
    gear, switches = (model[f"{prefix}0.leaves.{i}.table.weight"] for i in (0, 2))
    both = [switches[obs["switches"][:, 0]], switches[2 + obs["switches"][:, 1]]]
    return np.concatenate([gear[obs["gear"] - 2], obs["state"].reshape(N, -1), *both], axis=1)


def features(model: dict[str, Array], obs: Any, prefix: str = "") -> Array:
    return encode(model, obs, prefix) if isinstance(obs, dict) else obs.reshape(N, -1)


def observe(space: gymnasium.Space[Any]) -> Any:
    """N observations, as an array or as leaves by path."""
    space.seed(1)
    batch: list[Any] = [flatten(space, space.sample()) for _ in range(N)]
    if isinstance(batch[0], dict):
        return {path: np.stack([one[path] for one in batch]) for path in batch[0]}
    return np.stack(batch)


@pytest.mark.parametrize("space", [BOX, DICT], ids=["box", "dict"])
@pytest.mark.parametrize("dueling", [False, True])
def test_dqn(space: gymnasium.Space[Any], dueling: bool) -> None:
    agent = DQN(EnvSpec(space, FOUR), seed=0, units=[16, 8], dueling=dueling)
    model, obs = tensors(agent), observe(space)
    prefix = ("net." if dueling else "") + ("1." if space is DICT else "")
    values = layers(model, prefix, features(model, obs, "net." if dueling else ""))
    if dueling:
        values = values[:, :1] + values[:, 1:] - values[:, 1:].mean(axis=1, keepdims=True)
    best = values.argmax(axis=1)
    np.testing.assert_array_equal(agent.sample(obs), np.stack([best // 2, best % 2], axis=1))


@pytest.mark.parametrize("space", [BOX, DICT], ids=["box", "dict"])
@pytest.mark.parametrize("kind", [SAC, TD3])
def test_continuous_actions(kind: type[SAC | TD3], space: gymnasium.Space[Any]) -> None:
    agent = kind(EnvSpec(space, ARM), seed=0, units=[16, 8])
    model, obs = tensors(agent), observe(space)
    outputs = layers(model, "1.", features(model, obs))
    assert outputs.shape == (N, 4 if kind is SAC else 2)
    unit = np.tanh(outputs[:, :2])
    np.testing.assert_allclose(agent.sample(obs), ARM.low + (unit + 1) / 2 * (ARM.high - ARM.low), atol=1e-5)
