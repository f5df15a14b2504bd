from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.dqn import DQN, DQNConfig, DuelingNetwork, join_dueling
from common.agents.networks.layers import Mlp
from common.data import Array, Items, Model, ModelVersion
from common.errors import CheckpointError, ConfigError, PluginError
from common.interfaces import EnvSpec
from common.settings import validate
from crossborder.testing import ItemMemory
from examples import own_network
from tests.common.agents.parts import CHAIN, FIRST, SECOND, WeightedMemory, copies, holding, items_of, model_of, same

END = np.zeros(2, np.float32)


def spec(n_actions: int = 2, start: int = 0) -> EnvSpec:
    return EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(n_actions, start=start))


def make(n_actions: int = 2, *, seed: int = 0, epsilon: float = 0.0, start: int = 0, **params: Any) -> DQN:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    return DQN(spec(n_actions, start), seed=seed, epsilon=epsilon, **({"units": (8,), "update": "eager"} | params))


def tabular(online: list[list[float]], target: list[list[float]], **params: Any) -> DQN:
    """Without hidden layers and with one-hot observations both networks are tables: state by state, its values."""
    agent = make(units=(), batch_size=4, max_grad_norm=None, **params)
    with torch.no_grad():
        for net, table in ((agent.qnet, online), (agent.qnet_tgt, target)):
            weight, bias = net.parameters()
            weight.copy_(torch.tensor(table).T)
            bias.zero_()
    return agent


def values(net: torch.nn.Module, obs: Array) -> Array:
    with torch.inference_mode():
        found: Array = net(torch.from_numpy(obs)).numpy()
    return found


def observations(n: int) -> Array:
    return np.random.default_rng(1).uniform(-10, 10, (n, 2)).astype(np.float32)


# Learning.


@pytest.mark.parametrize(("double_dqn", "critic_loss"), [(True, "smooth_l1"), (False, "mse")])
def test_it_learns_the_values_of_two_states(double_dqn: bool, critic_loss: str) -> None:
    agent = make(
        units=(16,),
        lr=0.01,
        batch_size=16,
        discount_factor=0.9,
        soft_update_interval=10,
        double_dqn=double_dqn,
        critic_loss=critic_loss,
        update="captured",
    )
    memory = holding(CHAIN)
    for _ in range(400):
        agent.opt(memory)
    learned = values(agent.qnet, np.stack([FIRST, SECOND]))
    np.testing.assert_allclose(learned, [[0.9, 0.3], [1.0, 0.0]], atol=0.05)
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("terminated", "truncated", "double_dqn", "target"),
    [
        (False, False, True, 1 + 0.5 * 5),  # Online picks action 1 of SECOND, which the target network values at 5.
        (False, False, False, 1 + 0.5 * 10),
        (False, True, True, 1 + 0.5 * 5),
        (True, False, True, 1.0),
        (True, True, False, 1.0),
    ],
)
def test_an_update_is_that_of_the_slow_formula(
    terminated: bool, truncated: bool, double_dqn: bool, target: float
) -> None:
    agent = tabular(
        online=[[3.0, 4.0], [1.0, 2.0]],
        target=[[0.0, 0.0], [10.0, 5.0]],
        discount_factor=0.5,
        double_dqn=double_dqn,
        critic_loss="mse",
    )
    record = agent.opt(holding([(FIRST, 1, 1.0, SECOND, terminated, truncated)]))
    assert record is not None
    found = {name: float(value) for name, value in record.items()}
    assert found == pytest.approx({"loss": (4.0 - target) ** 2, "pred_mean": 4.0, "tgt_mean": target})
    after = values(agent.qnet, np.stack([FIRST]))[0]
    assert after[0] == 3.0
    assert (after[1] > 4.0) == (target > 4.0)


@pytest.mark.parametrize(("terminated", "target"), [(False, 1 + 0.25 * 5), (True, 1.0)])
def test_a_discount_column_takes_the_place_of_the_discount_factor(terminated: bool, target: float) -> None:
    agent = tabular(online=[[3.0, 4.0], [1.0, 2.0]], target=[[0.0, 0.0], [10.0, 5.0]], discount_factor=0.5)
    memory = holding([(FIRST, 1, 1.0, SECOND, terminated, False)], discount=np.array([0.25], np.float32))
    record = agent.opt(memory)
    assert record is not None
    assert float(record["tgt_mean"]) == target


def test_an_empty_memory_changes_nothing_and_counts_for_nothing() -> None:
    agent, memory = make(soft_update_interval=1), holding([])
    before = copies(agent.qnet)
    assert agent.opt(memory) is None
    assert same(copies(agent.qnet), before)
    assert memory.sampled == 0


def test_an_opt_step_draws_one_batch_for_each_of_its_updates() -> None:
    memory = holding(CHAIN)
    make(batch_size=5, n_updates_per_opt=3).opt(memory)
    assert memory.sampled == 15


class Counted(ItemMemory):
    """Keeps the sizes of its draws."""

    def __init__(self, items: Items, *, is_uniform: bool) -> None:
        super().__init__(items)
        self.is_uniform = is_uniform
        self.sizes: list[int] = []

    def batch(self, size: int) -> Items:
        self.sizes.append(size)
        return super().batch(size)


@pytest.mark.parametrize("settings", [{}, {"double_dqn": False}, {"munchausen": {}}], ids=str)
def test_batches_that_are_drawn_at_once_teach_the_same_as_one_after_another(settings: dict[str, Any]) -> None:
    learnt = []
    for is_uniform, sizes in ((True, [30] * 4), (False, [5] * 24)):  # Six is the largest divisor of 12 up to eight.
        memory = Counted(items_of(CHAIN), is_uniform=is_uniform)
        agent = make(batch_size=5, n_updates_per_opt=12, soft_update_interval=1, tau=0.5, **settings)
        for _ in range(2):
            agent.opt(memory)
        assert memory.sizes == sizes
        learnt.append(copies(agent.qnet))
    torch.testing.assert_close(*learnt)


def test_noisy_networks_and_large_observations_draw_one_batch_after_another() -> None:
    memory = Counted(items_of(CHAIN), is_uniform=True)
    make(batch_size=5, n_updates_per_opt=4, noisy=0.5).opt(memory)
    make(batch_size=40_000, n_updates_per_opt=2).opt(memory)
    assert memory.sizes == [5] * 4 + [40_000] * 2


def test_gradients_are_clipped_to_the_norm_asked_for() -> None:
    rows = [(FIRST, 0, 100.0, END, True, False)]
    agent = make(max_grad_norm=0.5, critic_loss="mse")
    record = agent.opt(holding(rows))
    assert record is not None
    assert float(record["grad_norm"]) > 0.5
    gradients = [parameter.grad for parameter in agent.qnet.parameters() if parameter.grad is not None]
    assert float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) == pytest.approx(0.5, rel=1e-4)


# The target network.


def test_the_target_is_an_exact_copy_at_each_interval_and_stays_between() -> None:
    agent, memory = make(soft_update_interval=3), holding(CHAIN)
    kept = copies(agent.qnet)
    for step in range(1, 8):
        agent.opt(memory)
        if step % 3 == 0:
            kept = copies(agent.qnet)
        assert same(copies(agent.qnet_tgt), kept), f"after step {step}"
        assert same(copies(agent.qnet), kept) == (step % 3 == 0)


@pytest.mark.parametrize("tau", [0.25, 0.005])
def test_tau_is_the_share_that_moves_into_the_target(tau: float) -> None:
    agent, memory = make(soft_update_interval=1, tau=tau, lr=0.1), holding(CHAIN)
    for _ in range(3):
        before = copies(agent.qnet_tgt)
        agent.opt(memory)
        slow = [(1 - tau) * old + tau * new for old, new in zip(before, copies(agent.qnet), strict=True)]
        torch.testing.assert_close(copies(agent.qnet_tgt), slow)
        assert not same(copies(agent.qnet_tgt), before)


# Prioritised replay and first priorities.


@pytest.mark.parametrize("double_dqn", [True, False])
def test_weights_scale_the_loss_of_each_item_and_errors_are_reported(double_dqn: bool) -> None:
    agent = tabular(
        online=[[3.0, 4.0], [1.0, 2.0]],
        target=[[0.0, 0.0], [10.0, 5.0]],
        discount_factor=0.5,
        double_dqn=double_dqn,
        critic_loss="mse",
    )
    rows = [(FIRST, 1, 1.0, SECOND, False, False), (SECOND, 0, 3.0, FIRST, True, False)]
    memory = WeightedMemory(items_of(rows), [0.5, 1.0])
    record = agent.opt(memory)
    assert record is not None
    errors = [1 + 0.5 * (5 if double_dqn else 10) - 4, 3 - 1]
    assert float(record["loss"]) == pytest.approx((0.5 * errors[0] ** 2 + errors[1] ** 2) / 2)
    assert memory.told == [([70, 71], [abs(error) for error in errors])]


def test_no_errors_are_reported_to_a_uniform_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = holding(CHAIN)
    monkeypatch.delattr(type(memory), "update_priority")
    assert make().opt(memory) is not None


def test_each_update_reports_the_errors_of_its_own_batch() -> None:
    memory = WeightedMemory(items_of(CHAIN), [1.0] * 4)
    make(n_updates_per_opt=3, lr=0.1).opt(memory)
    assert [index for index, _ in memory.told] == [[70, 71, 72, 73]] * 3
    assert memory.told[0] != memory.told[1] != memory.told[2]


@pytest.mark.parametrize("double_dqn", [True, False])
def test_an_actor_computes_td_errors_by_the_only_network_it_has(double_dqn: bool) -> None:
    agent = tabular(
        online=[[3.0, 4.0], [1.0, 2.0]],
        target=[[np.nan, np.nan], [np.nan, np.nan]],
        discount_factor=0.5,
        double_dqn=double_dqn,
    )
    rows = [(FIRST, 1, 1.0, SECOND, False, False), (SECOND, 0, 3.0, FIRST, True, False)]
    np.testing.assert_array_equal(agent.td_error(items_of(rows)), np.array([1 + 0.5 * 2 - 4, 3 - 1], np.float32))
    discounted = items_of(rows[:1], discount=np.array([0.25], np.float32))
    np.testing.assert_array_equal(agent.td_error(discounted), np.array([1 + 0.25 * 2 - 4], np.float32))


# Acting.


def test_in_eval_mode_it_takes_the_action_of_highest_value() -> None:
    agent, obs = make(4, epsilon=1.0), observations(200)
    agent.eval()
    actions = agent.sample(obs)
    assert actions.tolist() == values(agent.qnet, obs).argmax(axis=1).tolist()
    assert len(set(actions.tolist())) > 1
    agent.train()
    assert agent.sample(obs).tolist() != actions.tolist()


def test_with_epsilon_1_every_action_is_as_likely() -> None:
    agent = make(3, epsilon=1.0)
    agent.train()
    counts = np.bincount(agent.sample(observations(6000)))
    assert counts.sum() == 6000
    np.testing.assert_allclose(counts, 2000, rtol=0.06)


def test_with_epsilon_a_half_half_of_the_actions_are_greedy_and_some_more_by_chance() -> None:
    agent, obs = make(4, epsilon=0.5, explorer={"final_step": 0}), observations(6000)
    greedy = agent.sample(obs)
    agent.train()
    assert (agent.sample(obs) == greedy).mean() == pytest.approx(0.5 + 0.5 / 4, abs=0.03)


def test_with_epsilon_0_exploring_is_acting_greedily() -> None:
    agent, obs = make(4, epsilon=0.0, explorer={"final_step": 0}), observations(200)
    greedy = agent.sample(obs)
    agent.train()
    assert agent.sample(obs).tolist() == greedy.tolist()


def test_with_softmax_better_actions_are_likelier_and_eval_mode_stays_greedy() -> None:
    softmax = {"kind": "softmax", "temperature": 0.5}
    agent = tabular(online=[[0.0, 0.5], [0.0, 0.0]], target=[[0.0, 0.0]] * 2, explorer=softmax)
    obs = np.stack([FIRST, SECOND]).repeat(5000, axis=0)
    assert set(agent.sample(obs[:5000]).tolist()) == {1}
    agent.train()
    chosen = agent.sample(obs).reshape(2, 5000).mean(axis=1)
    np.testing.assert_allclose(chosen, [1 / (1 + np.exp(-1)), 0.5], atol=0.03)


def test_the_seed_decides_on_weights_and_exploration() -> None:
    agents = [make(3, seed=seed, epsilon=1.0) for seed in (1, 1, 2)]
    for agent in agents:
        agent.train()
    first, again, other = (agent.sample(observations(50)).tolist() for agent in agents)
    assert first == again != other
    assert same(copies(agents[0].qnet), copies(agents[1].qnet))
    assert not same(copies(agents[0].qnet), copies(agents[2].qnet))


def test_actions_of_a_space_that_starts_at_5_are_offset_both_ways() -> None:
    agent = tabular(online=[[1.0, 2.0], [4.0, 3.0]], target=[[0.0, 0.0], [0.0, 0.0]], start=5, epsilon=1.0)
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [6, 5]
    agent.train()
    assert set(agent.sample(observations(100)).tolist()) == {5, 6}
    record = agent.opt(holding([(FIRST, 6, 0.0, END, True, False)]))
    assert record is not None
    assert float(record["pred_mean"]) == 2.0


@pytest.mark.parametrize("space", [gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.MultiBinary(2)])
def test_an_action_space_that_is_not_discrete_is_refused(space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigError, match="Discrete action space, found"):
        DQN(EnvSpec(spec().observation_space, space), seed=0)


def test_it_learns_which_combination_of_actions_pays() -> None:
    space = gymnasium.spaces.MultiDiscrete([3, 4], start=[0, -1])
    agent = DQN(EnvSpec(spec().observation_space, space), seed=0, epsilon=1.0, units=(16,), lr=0.01, batch_size=32)
    states = np.stack([FIRST, SECOND])
    best = np.array([[2, -1], [0, 2]])  # In either state another one.
    agent.train()
    tried = [(i % 2, agent.sample(states)[i % 2]) for i in range(400)]
    agent.eval()
    rows = [(states[i], action, float((action == best[i]).all()), END, True, False) for i, action in tried]
    memory = holding(rows)
    for _ in range(400):
        agent.opt(memory)
    actions = agent.sample(states)
    assert actions.tolist() == best.tolist()
    assert all(space.contains(action) for action in actions)


# Models and checkpoints.


def test_a_synced_model_is_adopted_and_drives_exploration() -> None:
    agent, obs = make(4, seed=2, epsilon=0.2, explorer={"start": 1.0, "final_step": 100}), observations(6000)
    source = make(4, seed=1)
    for opt_steps, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2)):
        source.opt(holding(CHAIN))
        agent.sync_model(model_of(source, opt_steps))
        assert same(copies(agent.qnet), copies(source.qnet))
        agent.eval()
        greedy = agent.sample(obs)
        agent.train()
        assert (agent.sample(obs) == greedy).mean() == pytest.approx(1 - epsilon + epsilon / 4, abs=0.03)


def test_an_adopted_model_is_not_changed_when_its_source_goes_on() -> None:
    source, agent = make(seed=1), make(seed=2)
    agent.sync_model(Model(ModelVersion(1, 0), {name: value.numpy() for name, value in source.model_info().items()}))
    adopted = copies(agent.qnet)
    source.opt(holding(CHAIN))
    assert same(copies(agent.qnet), adopted)
    assert not same(copies(source.qnet), adopted)


def test_what_it_publishes_are_always_the_same_live_tensors() -> None:
    agent = make(soft_update_interval=1)

    def places() -> dict[str, tuple[int, torch.Size]]:
        return {name: (value.data_ptr(), value.shape) for name, value in agent.model_info().items()}

    before, live = places(), agent.model_info()
    agent.opt(holding(CHAIN))
    agent.load_params(make(seed=5).save_params())
    assert places() == before
    assert same(list(live.values()), copies(agent.qnet))


def test_saved_parameters_are_restored_with_both_networks() -> None:
    trained, fresh = make(seed=1, soft_update_interval=100), make(seed=2)
    for _ in range(3):
        trained.opt(holding(CHAIN))
    fresh.load_params(trained.save_params())
    assert same(copies(fresh.qnet), copies(trained.qnet))
    assert same(copies(fresh.qnet_tgt), copies(trained.qnet_tgt))
    assert not same(copies(fresh.qnet), copies(fresh.qnet_tgt))


@pytest.mark.parametrize("kept", ["qnet.", "qnet_tgt.", "nothing"])
def test_parameters_that_lack_a_network_are_refused(kept: str) -> None:
    params = {name: value for name, value in make().save_params().items() if name.startswith(kept)}
    with pytest.raises(CheckpointError, match="the saved network does not fit this one"):
        make().load_params(params)


@pytest.mark.parametrize("other", [{"units": (9,)}, {"units": (8, 8)}, {"n_actions": 3}])
def test_the_parameters_of_another_network_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the saved network does not fit this one"):
        make().load_params(make(**other).save_params())


def test_observations_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"):
        DQN(EnvSpec(gymnasium.spaces.Text(16), gymnasium.spaces.Discrete(4)), seed=0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_actions_have_the_dtype_of_their_space(dtype: type) -> None:
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    agent = DQN(EnvSpec(box, gymnasium.spaces.Discrete(2, dtype=dtype)), seed=0)
    assert agent.sample(np.zeros((3, 2), np.float32)).dtype == dtype


# A user's own network.


DUELING = {"target": "examples.own_network:Dueling", "params": {"width": 8}}


def test_a_users_own_network_takes_the_place_of_both_networks_and_learns() -> None:
    agent = DQN(spec(), seed=0, network=DUELING, lr=0.01, batch_size=16, discount_factor=0.9, soft_update_interval=10)
    assert isinstance(agent.qnet, own_network.Dueling)
    assert isinstance(agent.qnet_tgt, own_network.Dueling)
    assert agent.qnet.value.in_features == 8
    for _ in range(400):
        agent.opt(holding(CHAIN))
    learned = values(agent.qnet, np.stack([FIRST, SECOND]))
    np.testing.assert_allclose(learned, [[0.9, 0.3], [1.0, 0.0]], atol=0.05)


def test_without_one_the_network_is_made_of_units() -> None:
    assert isinstance(make(network=None).qnet, Mlp)


def test_a_network_that_cannot_be_found_or_takes_no_such_parameter_is_refused() -> None:
    with pytest.raises(PluginError, match="has no callable 'Duelling'"):
        DQN(spec(), seed=0, network={"target": "examples.own_network:Duelling"})
    with pytest.raises(ConfigError, match=r"agent\.params\.network\.params\.widht: unknown parameter .*'width'"):
        DQN(spec(), seed=0, network={**DUELING, "params": {"widht": 8}})


def test_units_and_a_network_of_ones_own_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="give units or network, not both"):
        validate(DQNConfig, {"units": [8], "network": DUELING})


# Dueling.


@pytest.mark.parametrize("network", [None, "tests.common.agents.networks.test_encoders:tower"])
def test_dueling_asks_either_network_for_one_output_more_and_learns(network: str | None) -> None:
    # Dropout of half the action values, the tower's own rate, would keep it from learning them exactly.
    own = {"units": (16,)} if network is None else {"network": {"target": network, "params": {"rate": 0.0}}}
    agent = DQN(
        spec(), seed=0, dueling=True, lr=0.01, batch_size=16, discount_factor=0.9, soft_update_interval=10, **own
    )
    for net in (agent.qnet, agent.qnet_tgt):
        assert isinstance(net, DuelingNetwork)
        assert net.net(torch.zeros(1, 2)).shape == (1, 3)
        assert net(torch.zeros(1, 2)).shape == (1, 2)
    for _ in range(400):
        agent.opt(holding(CHAIN))
    learned = values(agent.qnet, np.stack([FIRST, SECOND]))
    np.testing.assert_allclose(learned, [[0.9, 0.3], [1.0, 0.0]], atol=0.05)


def test_without_dueling_parameters_have_the_names_they_always_had() -> None:
    names = {"layers.1.weight", "layers.1.bias", "layers.3.weight", "layers.3.bias"}
    assert set(make().model_info()) == names
    assert set(make().save_params()) == {f"{net}.{name}" for net in ("qnet", "qnet_tgt") for name in names}


def test_parameters_with_and_without_dueling_do_not_fit_each_other() -> None:
    with pytest.raises(CheckpointError, match="the saved network does not fit this one"):
        make(dueling=True).load_params(make().save_params())


# Munchausen.


def slow_munchausen(q: list[float], q_next: list[float], action: int, reward: float) -> float:
    """The target of the paper's equation 2, with alpha 0.9, temperature 0.5 and a log-policy of at least -1."""

    def policy(values: list[float]) -> list[float]:
        shares = [math.exp(value / 0.5) for value in values]
        return [share / sum(shares) for share in shares]

    bonus = 0.9 * max(0.5 * math.log(policy(q)[action]), -1.0)
    soft = sum(p * (value - 0.5 * math.log(p)) for p, value in zip(policy(q_next), q_next, strict=True))
    return reward + bonus + 0.5 * soft


@pytest.mark.parametrize("action", [0, 1])
def test_the_target_of_munchausen_is_that_of_the_slow_formula_and_of_the_target_network(action: int) -> None:
    agent = tabular(
        online=[[3.0, 4.0], [1.0, 2.0]],
        target=[[0.5, 3.0], [1.0, 1.5]],
        discount_factor=0.5,
        munchausen={"temperature": 0.5},
    )
    record = agent.opt(holding([(FIRST, action, 1.0, SECOND, False, False)]))
    assert record is not None
    assert float(record["tgt_mean"]) == pytest.approx(slow_munchausen([0.5, 3.0], [1.0, 1.5], action, 1.0), rel=1e-4)


def test_a_munchausen_agent_learns_which_actions_are_best() -> None:
    learning: dict[str, Any] = {"lr": 0.01, "batch_size": 16, "discount_factor": 0.9, "soft_update_interval": 10}
    agent = make(units=(16,), munchausen={"alpha": 0.5}, update="captured", **learning)
    memory = holding(CHAIN)
    for _ in range(400):
        agent.opt(memory)
    assert agent.sample(np.stack([FIRST, SECOND])).tolist() == [0, 0]


def test_without_alpha_and_temperature_it_is_dqn() -> None:
    agent = make(
        units=(16,),
        lr=0.01,
        batch_size=16,
        discount_factor=0.9,
        soft_update_interval=10,
        munchausen={"alpha": 0.0, "temperature": 1e-3},
        update="captured",
    )
    memory = holding(CHAIN)
    for _ in range(400):
        agent.opt(memory)
    np.testing.assert_allclose(values(agent.qnet, np.stack([FIRST, SECOND])), [[0.9, 0.3], [1.0, 0.0]], atol=0.05)


def test_munchausen_and_double_dqn_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="give munchausen or double_dqn, not both"):
        validate(DQNConfig, {"munchausen": {}, "double_dqn": True})
    assert validate(DQNConfig, {"munchausen": {}, "double_dqn": False}).munchausen is not None


def test_dueling_values_are_the_value_plus_each_advantages_difference_from_the_mean() -> None:
    streams = torch.tensor([[10.0, 1.0, 2.0, 6.0], [-1.0, 0.0, 0.0, 0.0]])
    found = DuelingNetwork(nn.Identity())(streams)
    assert found.tolist() == [[8.0, 9.0, 13.0], [-1.0, -1.0, -1.0]]


def test_whatever_is_added_to_all_advantages_the_mean_of_dueling_values_is_the_value() -> None:
    net, obs = Mlp((3,), 5, (8,)), torch.rand(7, 3)
    torch.testing.assert_close(DuelingNetwork(net)(obs).mean(dim=1), net(obs)[:, 0])
    shifted = net(obs) + torch.tensor([0.0, *[3.0] * 4])
    torch.testing.assert_close(DuelingNetwork(nn.Identity())(shifted), DuelingNetwork(net)(obs))


def test_streams_are_joined_along_the_axis_of_actions_at_each_level() -> None:
    streams = torch.rand(2, 4, 5)
    found = join_dueling(streams, dim=1)
    for level in range(5):
        torch.testing.assert_close(found[:, :, level], join_dueling(streams[:, :, level]))
