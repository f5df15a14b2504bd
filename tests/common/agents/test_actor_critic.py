"""What holds for all agents with a continuous policy and n critics."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from common.agents.actor_critic import ActorCritic
from common.agents.awac import AWAC
from common.agents.iql import IQL
from common.agents.networks.picture_networks import NatureCnn
from common.agents.sac import SAC
from common.agents.td3 import TD3
from common.data import Array
from common.errors import CheckpointError, ConfigError
from common.interfaces import EnvSpec
from crossborder.testing import ItemMemory
from tests.common.agents.parts import (
    Row,
    WeightedMemory,
    copies,
    fix_outputs,
    floats,
    holding,
    items_of,
    model_of,
    same,
)

OBS = Box(-1, 1, (2,), np.float32)
ACTIONS = Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
SPEC = EnvSpec(OBS, ACTIONS)
ZERO = np.zeros(2, np.float32)
QUIET: dict[type[ActorCritic], dict[str, Any]] = {SAC: {"ent_coef": 1e-9, "auto_ent_coef": False}}
"""Settings under which a next value is the least target Q and nothing else."""
EACH = pytest.mark.parametrize("kind", [SAC, TD3, AWAC, IQL])
BY_TARGET_CRITICS = pytest.mark.parametrize("kind", [SAC, TD3, AWAC])
"""IQL has a value network to bootstrap from."""
Kind = type[SAC] | type[TD3] | type[AWAC] | type[IQL]


def make(kind: Kind, spec: EnvSpec = SPEC, *, seed: int = 0, **params: Any) -> ActorCritic:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    defaults: dict[str, Any] = {"units": (8,), "batch_size": 16, "lr": 0.01, "update": "eager"}
    return kind(spec, seed=seed, **(defaults | params))


def row(
    reward: float = 1.0, terminated: bool = False, truncated: bool = False, action: Array | tuple[float, ...] = (1, 2)
) -> Row:
    return ZERO, action, reward, ZERO, terminated, truncated


def memory(*rows: Row) -> ItemMemory:
    return holding(rows or [row()], np.float32)


def observations(n: int = 50) -> Array:
    return np.random.default_rng(1).uniform(-1, 1, (n, 2)).astype(np.float32)


# Learning.


@EACH
def test_it_learns_the_best_action_of_a_bandit(kind: Kind) -> None:
    """One step, reward ``-(a - best)^2`` in the units of [-1, 1]; best lies off the middle of both dimensions."""
    actions = np.random.default_rng(0).uniform(ACTIONS.low, ACTIONS.high, (512, 2)).astype(np.float32)
    best, half_width = np.array([-0.6, 7.0]), np.array([2.0, 5.0])
    rewards = -np.square((actions - best) / half_width).sum(axis=1)
    rows = [row(float(reward), terminated=True, action=action) for reward, action in zip(rewards, actions, strict=True)]
    settings: dict[str, Any] = {"ent_coef": 0.01, "auto_ent_coef": False} if kind is SAC else {}
    agent = make(kind, units=(64,), batch_size=64, lr=3e-3, update="captured", **settings)
    items = memory(*rows)
    for _ in range(500):
        agent.opt(items)
    agent.eval()
    np.testing.assert_allclose((agent.sample(ZERO[None])[0] - best) / half_width, [0, 0], atol=0.15)


@BY_TARGET_CRITICS
@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [(False, False, 2 + 0.5 * 3), (False, True, 2 + 0.5 * 3), (True, False, 2.0), (True, True, 2.0)],
)
def test_the_target_is_the_least_critics_and_bootstraps_unless_terminated(
    kind: Kind, terminated: bool, truncated: bool, target: float
) -> None:
    agent = make(kind, units=(), discount_factor=0.5, reward_scale=2.0, n_critics=3, **QUIET.get(kind, {}))
    for online, behind, value in zip(agent.critics.nets, agent.critics_tgt.nets, (5.0, 3.0, 4.0), strict=True):
        fix_outputs(online, 1.0)
        fix_outputs(behind, value)
    record = floats(agent.opt(memory(row(1.0, terminated, truncated))))
    assert record["q_mean"] == pytest.approx(1.0)
    assert record["loss_critic"] == pytest.approx((1.0 - target) ** 2, rel=1e-5)


@BY_TARGET_CRITICS
def test_a_discount_column_takes_the_place_of_the_discount_factor(kind: Kind) -> None:
    agent = make(kind, units=(), discount_factor=0.5, n_critics=1, **QUIET.get(kind, {}))
    fix_outputs(agent.critics.nets[0], 1.0)
    fix_outputs(agent.critics_tgt.nets[0], 4.0)
    record = floats(agent.opt(holding([row(1.0)], np.float32, discount=np.array([0.25], np.float32))))
    assert record["loss_critic"] == pytest.approx((1.0 - (1.0 + 0.25 * 4.0)) ** 2, rel=1e-5)


@EACH
def test_weights_scale_the_loss_of_each_item_and_the_mean_error_of_the_critics_is_reported(kind: Kind) -> None:
    agent = make(kind, units=(), critic_loss="mse")
    for critic, value in zip(agent.critics.nets, (1.0, 4.0), strict=True):
        fix_outputs(critic, value)
    rows = [row(2.0, terminated=True), row(5.0, terminated=True)]
    memory = WeightedMemory(items_of(rows, np.float32), [1.0, 0.5])
    record = floats(agent.opt(memory))
    assert record["loss_critic"] == pytest.approx((1.0 + 0.5 * 16 + 4.0 + 0.5 * 1) / 4)
    assert memory.told == [([70, 71], [1.5, 2.5])]


@EACH
def test_critics_see_actions_in_minus_one_to_one(kind: Kind) -> None:
    agent = make(kind, units=(), n_critics=1)
    (critic,) = agent.critics.nets
    weight, bias = critic.parameters()
    with torch.no_grad():
        weight.copy_(torch.tensor([[0.0, 0.0, 10.0, 1.0]]))
        bias.zero_()
    record = floats(agent.opt(memory(row(action=(-2, 7.5)))))
    assert record["q_mean"] == pytest.approx(-10 + 0.5)


@EACH
def test_the_actors_loss_changes_no_critic(kind: Kind) -> None:
    agent = make(kind)
    before = copies(agent.critics)
    for _ in range(2):
        agent._improve_actor({"obs": torch.from_numpy(observations(4)), "action": torch.zeros(4, 2)})
    assert same(copies(agent.critics), before)
    assert all(parameter.grad is None for parameter in agent.critics.parameters())


@EACH
def test_targets_follow_by_tau(kind: Kind) -> None:
    settings: dict[str, Any] = {"policy_delay": 1} if kind is TD3 else {}
    agent = make(kind, tau=0.25, **settings)
    before = copies(agent.critics_tgt)
    agent.opt(memory())
    slow = [0.75 * old + 0.25 * new for old, new in zip(before, copies(agent.critics), strict=True)]
    torch.testing.assert_close(copies(agent.critics_tgt), slow)
    assert not same(copies(agent.critics_tgt), before)


@EACH
def test_gradients_are_clipped_to_the_norm_asked_for(kind: Kind) -> None:
    agent = make(kind, max_grad_norm=0.5)
    agent.opt(memory(row(1000.0)))
    gradients = [parameter.grad for parameter in agent.critics.parameters() if parameter.grad is not None]
    assert float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) == pytest.approx(0.5, rel=1e-4)


@EACH
def test_an_empty_memory_changes_nothing_and_counts_for_nothing(kind: Kind) -> None:
    agent, items = make(kind), holding([])
    before = agent.save_params()
    kept = [value.clone() for value in before.values()]
    assert agent.opt(items) is None
    assert same(list(agent.save_params().values()), kept)
    assert items.sampled == 0


@EACH
def test_an_opt_step_draws_one_batch_for_each_of_its_updates(kind: Kind) -> None:
    items = memory()
    make(kind, batch_size=5, n_updates_per_opt=3).opt(items)
    assert items.sampled == 15


# Acting.


@EACH
def test_actions_are_within_the_bounds_and_reach_both_ends(kind: Kind) -> None:
    settings: dict[str, Any] = {"exploration_noise": 2.0, "random_opts": 0} if kind is TD3 else {}
    agent = make(kind, **settings)
    agent.train()
    wild = agent.sample(observations(2000) * 100)
    assert wild.shape == (2000, 2)
    assert wild.dtype == np.float32
    assert all(ACTIONS.contains(action) for action in wild)
    middle, half_width = np.array([0, 5]), np.array([2, 5])
    assert (((wild.max(axis=0) - middle) / half_width) > 0.9).all()
    assert (((wild.min(axis=0) - middle) / half_width) < -0.9).all()


@EACH
def test_in_eval_mode_it_takes_tanh_of_the_mean_and_in_train_mode_explores(kind: Kind) -> None:
    agent, obs = make(kind), observations()
    agent.eval()
    greedy = agent.sample(obs)
    with torch.inference_mode():
        unit = agent.actor(torch.from_numpy(obs))[:, :2].tanh().numpy()
    np.testing.assert_allclose(greedy, [0, 5] + unit * [2, 5], rtol=1e-5, atol=1e-5)
    assert np.array_equal(agent.sample(obs), greedy)
    agent.train()
    first = agent.sample(obs)
    assert not np.array_equal(first, greedy)
    assert not np.array_equal(agent.sample(obs), first)


@EACH
def test_the_seed_decides_on_weights_exploration_and_learning(kind: Kind) -> None:
    agents = [make(kind, seed=seed) for seed in (1, 1, 2)]
    actions = []
    for agent in agents:
        agent.train()
        actions.append(agent.sample(observations()).tolist())
        agent.opt(memory())
    first, again, other = actions
    assert first == again != other
    states = [list(agent.save_params().values()) for agent in agents]
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


@EACH
def test_only_the_seed_of_exploration_differs_between_actors_of_one_model(kind: Kind) -> None:
    model = model_of(make(kind))
    agents = [make(kind, seed=seed) for seed in (1, 2)]
    for agent in agents:
        agent.sync_model(model)
    first, second = (agent.sample(observations()).tolist() for agent in agents)
    assert first == second
    for agent in agents:
        agent.train()
    first, second = (agent.sample(observations()).tolist() for agent in agents)
    assert first != second


@EACH
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec(OBS, gymnasium.spaces.Discrete(4)), r"expected a Box action space of floats, found Discrete\(4\)"),
        (EnvSpec(OBS, Box(-np.inf, np.inf, (2,))), r"finite bounds, low below high, .*; found Box\(-inf, inf"),
    ],
)
def test_spaces_it_cannot_act_in_are_refused(kind: Kind, spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{kind.__name__}: .*{message}"):
        make(kind, spec)


@EACH
def test_observations_and_actions_of_any_shape_are_taken(kind: Kind) -> None:
    spec = EnvSpec(Box(0, 255, (2, 3), np.uint8), Box(-1, 1, (2, 2), np.float64))
    agent = make(kind, spec)
    obs = np.zeros((3, 2), np.uint8).reshape(2, 3)
    actions = agent.sample(obs[None])
    assert actions.shape == (1, 2, 2)
    assert actions.dtype == np.float64
    rows = [(obs, actions[0], 1.0, obs, False, False)]
    assert agent.opt(holding(rows, np.float64)) is not None


# A network for the observations.

PIXELS = EnvSpec(Box(0, 255, (1, 36, 36), np.uint8), ACTIONS)
NATURE = {"target": "common.agents.networks:NatureCnn", "params": {"hidden": 8}}


@EACH
def test_it_learns_from_images_with_a_network_below_its_layers(kind: Kind) -> None:
    agent = make(kind, PIXELS, network=NATURE, feature_dim=6)
    obs = np.random.default_rng(0).integers(256, size=(36, 36), dtype=np.uint8)[None]
    column = obs[None].repeat(4, axis=0)
    items = holding([row(action=(1, 2))] * 4, np.float32)
    pixels = ItemMemory(items.batch(4) | {"obs": column, "next_obs": column})
    nets = (agent.actor, agent.critics)
    before = [copies(net) for net in nets]
    for _ in range(2):
        assert agent.opt(pixels) is not None
    assert PIXELS.action_space.contains(agent.sample(obs[None])[0])
    for old, net in zip(before, nets, strict=True):
        assert sum(isinstance(module, NatureCnn) for module in net.modules()) == 1
        unchanged = [torch.equal(x, y) for x, y in zip(old, copies(net), strict=True)]
        assert not any(unchanged)


@EACH
def test_a_network_that_does_not_take_the_observations_is_refused(kind: Kind) -> None:
    with pytest.raises(ConfigError, match=r"^NatureCnn: expected images"):
        make(kind, network=NATURE)


# Models and checkpoints.


@EACH
def test_a_synced_model_changes_the_actor_alone(kind: Kind) -> None:
    source, agent = make(kind, seed=1), make(kind, seed=2)
    others = {name: copies(net) for name, net in agent.nets.items() if name != "actor"}
    assert set(agent.model_info()) == set(agent.actor.state_dict())
    agent.sync_model(model_of(source))
    assert same(copies(agent.actor), copies(source.actor))
    assert all(same(copies(agent.nets[name]), kept) for name, kept in others.items())


@EACH
def test_what_it_publishes_are_always_the_same_live_tensors(kind: Kind) -> None:
    agent = make(kind)
    before, live = [value.data_ptr() for value in agent.model_info().values()], agent.model_info()
    for _ in range(2):
        agent.opt(memory())
    agent.load_params(make(kind, seed=5).save_params())
    assert [value.data_ptr() for value in agent.model_info().values()] == before
    assert same(list(live.values()), copies(agent.actor))


@EACH
def test_saved_parameters_are_restored_with_all_networks(kind: Kind) -> None:
    trained, fresh = make(kind, seed=1), make(kind, seed=2)
    for _ in range(4):
        trained.opt(memory())
    assert not same(copies(trained.critics), copies(trained.critics_tgt))
    fresh.load_params(trained.save_params())
    for name, net in trained.nets.items():
        assert same(copies(fresh.nets[name]), copies(net)), name


@EACH
@pytest.mark.parametrize("other", [{"units": (9,)}, {"units": (8, 8)}, {"n_critics": 3}])
def test_the_parameters_of_another_network_are_refused(kind: Kind, other: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=f"^{kind.__name__}: the saved network does not fit this one"):
        make(kind).load_params(make(kind, **other).save_params())


@EACH
def test_parameters_that_lack_any_one_network_are_refused(kind: Kind) -> None:
    agent = make(kind)
    for missing in (name for name, net in agent.nets.items() if net.state_dict()):
        params = {name: v for name, v in agent.save_params().items() if not name.startswith(f"{missing}.")}
        with pytest.raises(CheckpointError, match="does not fit"):
            agent.load_params(params)


def test_an_agents_parameters_are_not_the_others() -> None:
    with pytest.raises(CheckpointError, match=r"^TD3: the saved network does not fit this one"):
        make(TD3).load_params(make(SAC).save_params())
