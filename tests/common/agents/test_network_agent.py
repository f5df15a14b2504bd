"""Agents of networks learn on when restored, bit by bit; learn in train mode; and capture only known code."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from common.agents.awac import AWAC, AWACConfig
from common.agents.bc import BC
from common.agents.c51 import C51
from common.agents.discrete_sac import DiscreteSAC, DiscreteSACConfig
from common.agents.dqn import DQN
from common.agents.impala import IMPALAConfig
from common.agents.iql import IQL, IQLConfig
from common.agents.iqn import IQN
from common.agents.machinery.gradient_step import descend
from common.agents.machinery.optimizers import adam
from common.agents.machinery.update import Update
from common.agents.network_agent import (
    NetworkAgent,
    collect_networks,
    collect_optimizer,
    find_objects,
    load_networks,
    load_optimizer,
)
from common.agents.qr_dqn import QRDQN
from common.agents.recurrent_sac import RecurrentSACConfig
from common.agents.sac import SAC, SACConfig
from common.agents.td3 import TD3
from common.errors import CheckpointError, ConfigError
from common.interfaces import Agent, EnvSpec, TrainingState
from common.lanes.building import spec_of
from common.settings import Settings, validate
from crossborder.testing import ItemMemory, check_agent
from crossborder.testing.agent_checks import MakeAgent
from crossborder.testing.row_memory import transitions
from tests.common.agents import parts
from tests.common.agents.parts import assert_same_state, copies, same
from tests.devices import needs_gpu

SMALL: dict[str, Any] = {"units": (8,), "batch_size": 8}
WITH_STATE = (
    "two of five critics (REDQ)",
    "no targets (CrossQ)",
    "batch-normalised blocks, unit weights (FlashSAC)",
)
"""The critics that have more state than their weights: which are drawn, and statistics."""
AGENTS: dict[str, tuple[MakeAgent, str]] = {
    "DQN": (partial(DQN, **SMALL, soft_update_interval=7, explorer={"final_step": 100}), "CartPole-v1"),
    "IQN": (partial(IQN, **SMALL, feature_dim=8), "CartPole-v1"),
    "noisy C51": (partial(C51, **SMALL, noisy=0.5, dueling=True, explorer={"kind": "greedy"}), "CartPole-v1"),
    "QR-DQN": (partial(QRDQN, **SMALL, normalize_observations=True), "CartPole-v1"),
    "SAC": (partial(SAC, **SMALL), "Pendulum-v1"),
    "TD3": (partial(TD3, **SMALL, policy_delay=2), "Pendulum-v1"),
    **{f"SAC: {name}": (partial(SAC, **(SMALL | parts.CRITICS[name])), "Pendulum-v1") for name in WITH_STATE},
    "discrete SAC": (partial(DiscreteSAC, **SMALL), "CartPole-v1"),
    "SAC of a delayed policy and normalised observations": (
        partial(SAC, **SMALL, policy_delay=3, normalize_observations=True),
        "Pendulum-v1",
    ),
    "IQL": (partial(IQL, **SMALL), "Pendulum-v1"),
    "BC": (partial(BC, **SMALL), "Pendulum-v1"),
}


def through_a_file(state: TrainingState, path: Path) -> TrainingState:
    """As a checkpoint has it."""
    safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in state.tensors.items()}, path)
    return TrainingState(safetensors.torch.load_file(path), json.loads(json.dumps(state.values)))


def learn(agent: Agent, memory: ItemMemory, opts: int) -> None:
    for _ in range(opts):
        assert agent.opt(memory) is not None


@pytest.mark.parametrize("name", AGENTS)
def test_a_resumed_agent_learns_and_explores_as_one_that_was_never_interrupted(name: str, tmp_path: Path) -> None:
    make, env_id = AGENTS[name]
    env = gymnasium.make(env_id)
    items = transitions(env, 100)
    memory = ItemMemory(items)
    uninterrupted = make(spec=spec_of(env), seed=1, epsilon=0.1, device="cpu")
    uninterrupted.train()
    learn(uninterrupted, memory, 11)  # An odd number: half-way between TD3's updates of its actor.
    state, later = through_a_file(uninterrupted.training_state(), tmp_path / "state"), copy.deepcopy(memory)
    resumed = make(spec=spec_of(env), seed=2, epsilon=0.1, device="cpu")
    live = {name: tensor.data_ptr() for name, tensor in resumed.model_info().items()}
    resumed.load_training_state(state)
    resumed.train()
    learn(uninterrupted, memory, 11)
    learn(resumed, later, 11)
    assert_same_state(uninterrupted, resumed)
    obs = items["obs"][:50]
    np.testing.assert_array_equal(uninterrupted.sample(obs), resumed.sample(obs))
    assert live == {name: tensor.data_ptr() for name, tensor in resumed.model_info().items()}


def test_optimisers_and_the_entropy_coefficient_are_part_of_the_state() -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = SAC(spec_of(env), seed=0, **SMALL)
    learn(agent, ItemMemory(transitions(env, 20)), 1)
    names = agent.training_state().tensors.keys()
    assert {"ent_coef.log", "_ent_coef_optimizer.0.exp_avg", "_critics_optimizer.0.exp_avg_sq", "_generator"} <= names


def test_a_changed_learning_rate_holds_after_resuming() -> None:
    spec = spec_of(gymnasium.make("CartPole-v1"))
    resumed = DQN(spec, seed=0, lr=0.5, **SMALL)
    resumed.load_training_state(DQN(spec, seed=0, lr=0.1, **SMALL).training_state())
    assert resumed._optimizer.param_groups[0]["lr"] == 0.5


def test_the_state_of_another_network_or_agent_is_refused() -> None:
    spec = spec_of(gymnasium.make("CartPole-v1"))
    state = DQN(spec, seed=0, units=(8,)).training_state()
    with pytest.raises(CheckpointError, match=r"DQN: the saved network does not fit this one"):
        DQN(spec, seed=0, units=(9,)).load_training_state(state)
    with pytest.raises(
        CheckpointError, match=r"DQN: the saved state of its random generators does not fit this agent: '_rng'"
    ):
        DQN(spec, seed=0, units=(8,)).load_training_state(TrainingState(state.tensors))


def test_an_agent_that_learned_on_a_gpu_goes_on_on_a_cpu_with_other_random_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The state of a generator on a GPU has 16 bytes: its seed, and how many numbers it has drawn."""
    spec = spec_of(gymnasium.make("Pendulum-v1"))
    saved = SAC(spec, seed=0, **SMALL).training_state()

    def draw_as_resumed(generator: bytes) -> list[float]:
        state = torch.frombuffer(bytearray(generator), dtype=torch.uint8)
        agent = SAC(spec, seed=0, **SMALL)
        agent.load_training_state(TrainingState({**saved.tensors, "_generator": state}, saved.values))
        return torch.rand(3, generator=agent._generator).tolist()

    first, later = draw_as_resumed(bytes(8) + bytes([4] * 8)), draw_as_resumed(bytes(8) + bytes([8] * 8))
    begun = torch.rand(3, generator=SAC(spec, seed=0, **SMALL)._generator).tolist()
    assert len({tuple(numbers) for numbers in (first, later, begun)}) == 3
    assert draw_as_resumed(bytes(8) + bytes([4] * 8)) == first
    told = "SAC learned on another kind of device before: the random numbers of _generator begin anew"
    assert [record.getMessage() for record in caplog.records] == [told] * 3


@needs_gpu
@pytest.mark.parametrize(("before", "after"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_an_agent_goes_on_learning_on_another_kind_of_device(before: str, after: str, tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    spec, memory = spec_of(env), ItemMemory(transitions(env, 20))
    agent = SAC(spec, seed=0, device=before, **SMALL)
    learn(agent, memory, 4)
    resumed = SAC(spec, seed=0, device=after, **SMALL)
    resumed.load_training_state(through_a_file(agent.training_state(), tmp_path / "state"))
    for name, tensor in agent.save_params().items():
        assert torch.equal(resumed.save_params()[name].cpu(), tensor.cpu()), name
    learn(resumed, memory, 4)


# What is captured.


class MyDQN(DQN):
    """A user's own class: whatever it overrides may do something else in each call."""


def test_only_classes_and_networks_of_this_system_are_captured_unless_asked_for() -> None:
    spec = spec_of(gymnasium.make("CartPole-v1"))
    own: dict[str, Any] = {"network": {"target": "tests.common.agents.test_network_agent:Normalised"}}
    nature: dict[str, Any] = {"network": {"target": "common.agents.networks:NatureCnn", "params": {"hidden": 4}}}
    pictures = EnvSpec(gymnasium.spaces.Box(0, 255, (1, 36, 36), np.uint8), spec.action_space)
    assert DQN(spec, seed=0).is_captured
    assert DQN(pictures, seed=0, **nature).is_captured
    assert not DQN(spec, seed=0, update="eager").is_captured
    assert not DQN(spec, seed=0, **own).is_captured
    assert DQN(spec, seed=0, update="captured", **own).is_captured
    assert not MyDQN(spec, seed=0).is_captured
    assert MyDQN(spec, seed=0, update="captured").is_captured
    assert not Update(dict, {}).captured


def test_an_agent_that_is_told_to_compute_eagerly_captures_nothing() -> None:
    agent = SAC(spec_of(gymnasium.make("Pendulum-v1")), seed=0, **SMALL)
    assert agent.is_captured
    agent.compute_eagerly()
    assert not agent.is_captured


def test_optimisers_are_found_in_lists_and_dicts_under_the_names_of_their_places() -> None:
    adams = [adam([nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(3)]
    named = {"alone": adams[0], "listed": [None, adams[1]], "by": {"name": (adams[2],)}}
    found = dict(find_objects(torch.optim.Optimizer, named.items()))
    assert found == {"alone": adams[0], "listed.1": adams[1], "by.name.0": adams[2]}


# Train mode: batch normalisation and dropout do in it what they are made for, and acting is a fixed function.


OBS = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE, BOX = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1, 1, (1,), np.float32)
KINDS: list[type[NetworkAgent]] = [DQN, IQN, SAC, TD3, AWAC, IQL]


class Normalised(nn.Module):
    """A user's network with batch normalisation and, if asked for, dropout."""

    def __init__(self, in_shape: Sequence[int], out_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(in_shape[0])
        self.layers = nn.Sequential(nn.Linear(in_shape[0], 8), nn.Dropout(dropout), nn.Linear(8, out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(obs.float()))  # type: ignore[no-any-return]


def make(kind: type[NetworkAgent], dropout: float = 0.0, **params: Any) -> Any:
    network = {"target": "tests.common.agents.test_network_agent:Normalised", "params": {"dropout": dropout}}
    actions = DISCRETE if kind in (DQN, IQN) else BOX
    make_one: Any = kind
    return make_one(spec=EnvSpec(OBS, actions), seed=0, network=network, batch_size=32, **params)


def memory(kind: type[NetworkAgent]) -> ItemMemory:
    rng = np.random.default_rng(0)
    is_discrete = kind in (DQN, IQN)
    rows = [
        (
            rng.normal(5, 3, 3).astype(np.float32),
            int(rng.integers(2)) if is_discrete else rng.uniform(-1, 1, 1).astype(np.float32),
            1.0,
            rng.normal(5, 3, 3).astype(np.float32),
            False,
            False,
        )
        for _ in range(64)
    ]
    return ItemMemory(parts.items_of(rows, np.int64 if is_discrete else np.float32))


def norms(net: nn.Module) -> list[nn.BatchNorm1d]:
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]


@pytest.mark.parametrize(("kind", "update"), [(DQN, "eager"), (DQN, "captured"), (SAC, "captured"), (IQL, "captured")])
def test_statistics_of_batch_normalisation_follow_the_data(kind: type[NetworkAgent], update: str) -> None:
    agent, replay = make(kind, update=update), memory(kind)
    agent.train()
    for _ in range(60):
        agent.opt(replay)
    names = ("qnet",) if kind is DQN else ("actor", "critics")
    for norm in [norm for name in names for norm in norms(getattr(agent, name))]:
        assert norm.running_mean is not None
        assert norm.running_mean.tolist() == pytest.approx([5.0] * 3, abs=1.0)
        assert not norm.training


def test_the_target_has_the_statistics_of_the_online_network() -> None:
    agent, replay = make(DQN, soft_update_interval=5, tau=0.5), memory(DQN)
    for _ in range(5):
        agent.opt(replay)
    (online,), (target,) = norms(agent.qnet), norms(agent.qnet_tgt)
    assert online.running_mean is not None
    assert target.running_mean is not None
    assert torch.equal(online.running_mean, target.running_mean)
    agent.opt(replay)
    assert not torch.equal(online.running_mean, target.running_mean), "a target learns no statistics of its own"


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_captured_updates_are_the_eager_ones_bit_for_bit(kind: type[NetworkAgent]) -> None:
    found = []
    for update in ("eager", "captured"):
        agent, replay = make(kind, dropout=0.5, update=update), memory(kind)
        torch.manual_seed(7)  # Dropout draws from torch's own generator.
        for _ in range(10):
            agent.opt(replay)
        found.append({name: value.clone() for name, value in agent.save_params().items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_acting_drops_nothing_and_depends_on_no_other_row(kind: type[NetworkAgent]) -> None:
    agent, replay = make(kind, dropout=0.5), memory(kind)
    agent.opt(replay)
    agent.eval()
    obs = np.random.default_rng(1).normal(5, 3, (16, 3)).astype(np.float32)
    together = agent.sample(obs)
    assert np.array_equal(together, agent.sample(obs))
    singly = np.concatenate([agent.sample(obs[i : i + 1]) for i in range(16)])
    np.testing.assert_allclose(together, singly, rtol=1e-4, atol=1e-5)


def test_the_whole_check_passes() -> None:
    network = {"target": "tests.common.agents.test_network_agent:Normalised", "params": {"dropout": 0.1}}
    check_agent(partial(DQN, network=network, batch_size=16), gymnasium.make("CartPole-v1"), steps=150)


def test_networks_are_restored_by_name_also_where_one_name_begins_another() -> None:
    nets, fresh = ({"net": nn.Linear(2, 1), "net_tgt": nn.Linear(2, 1)} for _ in range(2))
    params = collect_networks(nets)
    assert set(params) == {"net.weight", "net.bias", "net_tgt.weight", "net_tgt.bias"}
    load_networks("Agent", fresh, params)
    assert all(same(copies(fresh[name]), copies(nets[name])) for name in nets)


@pytest.mark.parametrize("other", [{}, {"net": nn.Linear(3, 1)}, {"another": nn.Linear(2, 1)}])
def test_parameters_that_do_not_fit_are_refused(other: dict[str, nn.Module]) -> None:
    with pytest.raises(CheckpointError, match=r"^Agent: the saved network does not fit this one"):
        load_networks("Agent", {"net": nn.Linear(2, 1)}, collect_networks(other))


def test_an_optimiser_goes_on_with_its_moments_and_its_own_learning_rate() -> None:
    weights = [nn.Parameter(torch.tensor([1.0])) for _ in range(2)]
    old, new = (adam([weight], lr=lr) for weight, lr in zip(weights, (0.5, 0.125), strict=True))
    descend(3 * weights[0].sum(), old)
    load_optimizer(new, {f"adam.{name}": value for name, value in collect_optimizer(old).items()}, "adam.")
    assert set(collect_optimizer(new)) == {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    for name, value in collect_optimizer(old).items():
        assert torch.equal(collect_optimizer(new)[name], value)
    assert new.param_groups[0]["lr"] == 0.125


def test_moments_of_another_shape_are_refused() -> None:
    optimizer = adam([nn.Parameter(torch.zeros(2))], lr=0.5)
    with pytest.raises(ValueError, match=r"adam\.0\.exp_avg: expected \[2\], found \[3\]"):
        load_optimizer(optimizer, {"adam.0.exp_avg": torch.zeros(3)}, "adam.")


CONSTANT = {"kind": "constant", "warmup": 4}


@pytest.mark.parametrize(
    ("model", "given", "without_effect"),
    [
        (SACConfig, {"auto_ent_coef": False}, {"target_entropy": 0.0}),
        (SACConfig, {"auto_ent_coef": False}, {"ent_coef_lr": 0.1}),
        (RecurrentSACConfig, {"auto_ent_coef": False}, {"target_entropy": -1.0}),
        (DiscreteSACConfig, {"auto_ent_coef": False}, {"target_entropy": 0.98}),
        (IMPALAConfig, {"correction": "none"}, {"rho_bar": 1.0}),
        (IMPALAConfig, {"correction": "none"}, {"c_bar": 2.0}),
        (AWACConfig, {"adv_softmax": True}, {"exp_adv_max": 100.0}),
        (IQLConfig, {"adv_softmax": True}, {"exp_adv_max": 5.0}),
    ],
)
def test_a_setting_that_has_no_effect_beside_another_is_refused(
    model: type[Settings], given: dict[str, Any], without_effect: dict[str, Any]
) -> None:
    validate(model, given)
    validate(model, without_effect)
    (key,), (other,) = without_effect, given
    with pytest.raises(ConfigError, match=rf"^agent\.params: give {other}: \w+ or {key}, not both: "):
        validate(model, given | without_effect, "agent.params")


@pytest.mark.parametrize("without_effect", [{"steps": 10}, {"final": 0.5}])
def test_a_constant_learning_rate_has_no_fall(without_effect: dict[str, Any]) -> None:
    values = {"optimizer": {"kind": "adam", "schedule": CONSTANT}}
    validate(SACConfig, values)
    values["optimizer"]["schedule"] = CONSTANT | without_effect
    (key,) = without_effect
    with pytest.raises(ConfigError, match=rf"schedule: give kind: constant or {key}, not both: a constant rate"):
        validate(SACConfig, values, "agent.params")


def test_a_target_that_is_null_is_not_given() -> None:
    """A command line takes a value of a file back by ``--set agent.params.target_entropy=null``."""
    assert validate(SACConfig, {"auto_ent_coef": False, "target_entropy": None}).target_entropy is None
