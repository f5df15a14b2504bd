"""What holds for all agents whose observations are structured: a camera, joints and a mode."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space

from common.agents.awac import AWAC
from common.agents.bc import BC
from common.agents.dqn import DQN
from common.agents.iql import IQL
from common.agents.iqn import IQN
from common.agents.network_agent import NetworkAgent
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.data import Items, Leaves
from common.errors import ConfigError
from common.interfaces import EnvSpec, TrainingState
from common.spaces import to_columns
from crossborder.testing import ItemMemory, check_agent
from tests.common.agents.parts import Structured

SENSORS: dict[str, Space[Any]] = {
    "arm": Dict({"joints": Box(-1, 1, (3,), np.float32), "mode": Discrete(4, start=-1)}),
    "friction": Box(0, 1, (2,), np.float32),
}
BLIND, ROBOT = Dict(SENSORS), Dict({"camera": Box(0, 255, (12, 12, 3), np.uint8), **SENSORS})
CHOICES, FORCES = Discrete(3), Box(-2, 2, (2,), np.float32)
SMALL: dict[str, Any] = {"units": (8,), "feature_dim": 4, "batch_size": 8}
ACTOR_CRITICS = pytest.mark.parametrize("kind", [SAC, TD3, AWAC, IQL])
SHIFTED = pytest.mark.parametrize(("kind", "actions"), [(DQN, CHOICES), (SAC, FORCES)])


def make(kind: Any, actions: Any, *, seed: int = 0, **params: Any) -> Any:
    return kind(EnvSpec(ROBOT, actions), seed=seed, **(SMALL | params))


def observations(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "camera": rng.integers(256, size=(n, 12, 12, 3), dtype=np.uint8),
        "arm/joints": rng.uniform(-1, 1, (n, 3)).astype(np.float32),
        "arm/mode": rng.integers(-1, 3, n),
        "friction": rng.random((n, 2), np.float32),
    }


def transitions(actions: Any, n: int = 64) -> Items:
    rng = np.random.default_rng(2)
    return {
        **to_columns("obs", observations(n, 0)),
        **to_columns("next_obs", observations(n, 1)),
        "action": rng.integers(3, size=n) if actions is CHOICES else rng.uniform(-2, 2, (n, 2)).astype(np.float32),
        "reward": rng.normal(size=n).astype(np.float32),
        "terminated": rng.random(n) < 0.1,
        "truncated": np.zeros(n, np.bool_),
    }


def without(obs: dict[str, Any], path: str) -> Leaves:
    """The same observations, but for one leaf."""
    return {**obs, path: np.roll(obs[path], 1, axis=0)}


@pytest.mark.parametrize(
    ("kind", "space", "actions"),
    [
        *((DQN, ROBOT, CHOICES), (SAC, ROBOT, FORCES)),
        *((IQN, BLIND, CHOICES), (BC, BLIND, FORCES), (IQL, BLIND, FORCES)),
    ],
)
def test_the_whole_check_passes(kind: type[NetworkAgent], space: Dict, actions: Any) -> None:
    check_agent(partial(kind, **SMALL), Structured(space, actions), steps=100)


@SHIFTED
def test_with_shifts_and_keys_captured_updates_are_the_eager_ones_bit_for_bit(
    kind: type[NetworkAgent], actions: Any
) -> None:
    keys: dict[str, Any] = (
        {} if actions is CHOICES else {"actor_keys": ["camera"], "critic_keys": ["friction", "camera"]}
    )
    found = []
    for update in ("eager", "captured"):
        agent, memory = make(kind, actions, update=update, random_shift=2, **keys), ItemMemory(transitions(actions))
        agent.train()
        for _ in range(6):
            agent.opt(memory)
            agent.sample(observations(5, 3))
        found.append({name: value.clone() for name, value in agent.training_state().tensors.items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@SHIFTED
def test_each_update_draws_other_shifts_and_a_resumed_agent_goes_on_with_them(
    kind: type[NetworkAgent], actions: Any
) -> None:
    agents = [make(kind, actions, random_shift=2), make(kind, actions, seed=9, random_shift=2)]
    learnt, one_step = agents[0], {name: column[:8] for name, column in transitions(actions).items()}
    memories = [ItemMemory(one_step) for _ in agents]
    learnt.opt(memories[0])
    first = learnt._shift_generator.get_state().clone()
    memories[1].batch(8)
    state = learnt.training_state()
    agents[1].load_training_state(TrainingState({k: v.clone() for k, v in state.tensors.items()}, dict(state.values)))
    for _ in range(4):
        for agent, memory in zip(agents, memories, strict=True):
            agent.opt(memory)
    assert not torch.equal(learnt._shift_generator.get_state(), first)
    for name, value in learnt.save_params().items():
        assert torch.equal(value, agents[1].save_params()[name]), name


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_without_shifts_there_is_no_generator_for_them(kind: type[NetworkAgent]) -> None:
    names = make(kind, CHOICES if kind is DQN else FORCES).training_state().tensors
    assert "_shift_generator" not in names


# Keys: what the policy sees and what the critics see.


@ACTOR_CRITICS
def test_the_policy_and_the_critics_see_the_leaves_of_their_keys_and_no_others(kind: Any) -> None:
    agent = make(kind, FORCES, actor_keys=["arm/joints", "camera"], critic_keys=["friction", "arm/mode"])
    obs, action = observations(8, 0), torch.rand(8, 2)
    agent.eval()
    tensors = {path: torch.from_numpy(leaf) for path, leaf in obs.items()}
    actions, values = agent.sample(obs), agent.critics(tensors, action)
    for path in obs:
        changed = without(obs, path)
        assert isinstance(changed, dict)
        assert np.array_equal(agent.sample(changed), actions) == (path not in ("arm/joints", "camera"))
        others = {name: torch.from_numpy(leaf) for name, leaf in changed.items()}
        assert torch.equal(agent.critics(others, action), values) == (path not in ("friction", "arm/mode"))


@ACTOR_CRITICS
def test_a_policy_acts_without_the_leaves_that_only_the_critics_see(kind: Any) -> None:
    agent = make(kind, FORCES, actor_keys=["arm/joints", "arm/mode"])
    obs = observations(8, 0)
    seen = {path: leaf for path, leaf in obs.items() if path.startswith("arm/")}
    agent.eval()
    np.testing.assert_array_equal(agent.sample(seen), agent.sample(obs))


def test_a_key_that_is_no_leaf_is_refused_where_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match=r"agent\.params\.critic_keys: expected paths of leaves in Dict.*'joints'"):
        make(SAC, FORCES, critic_keys=["joints"])
    with pytest.raises(ConfigError, match=r"agent\.params\.actor_keys: expected paths of leaves"):
        SAC(EnvSpec(Box(-1, 1, (3,), np.float32), FORCES), seed=0, actor_keys=["obs"])


def test_shifts_without_pictures_are_refused_where_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match="random_shift: expected observations with pictures"):
        DQN(EnvSpec(MultiBinary(3), CHOICES), seed=0, random_shift=4)
