"""What SAC's and TD3's critics may be by their settings, and the random actions with which they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from common.agents.bootstrapping import Bootstrapping
from common.agents.networks.batch_renorm import BatchRenorm
from common.agents.sac import SAC, SACConfig
from common.agents.td3 import TD3, TD3Config
from common.config.run_config import RunConfig
from common.data import Array
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from crossborder.testing import ItemMemory
from learner.loop.in_turns import train_in_turns
from tests.common.agents.parts import (
    CHECKED_CRITICS,
    CRITICS,
    CROSSQ,
    WeightedMemory,
    copies,
    fix_outputs,
    floats,
    holding,
    items_of,
    model_of,
    same,
)

SPEC = EnvSpec(spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))
ZERO = np.zeros(2, np.float32)
QUIET: dict[str, Any] = {"ent_coef": 1e-9, "auto_ent_coef": False, "units": ()}
"""Settings under which SAC's next value is what its critics say and nothing else."""
EACH = pytest.mark.parametrize("kind", [SAC, TD3])
Kind = type[SAC] | type[TD3]


def make(kind: Kind = SAC, **params: Any) -> Bootstrapping:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    defaults: dict[str, Any] = {"units": (8,), "batch_size": 16, "lr": 0.01, "update": "eager"}
    return kind(SPEC, seed=0, **(defaults | params))


def memory(reward: float = 1.0, *, terminated: bool = False) -> ItemMemory:
    return holding([(ZERO, (0.5,), reward, ZERO, terminated, False)], np.float32)


def norms(net: torch.nn.Module) -> list[BatchRenorm]:
    return [part for part in net.modules() if isinstance(part, BatchRenorm)]


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *((SAC, variant) for variant in (*CHECKED_CRITICS, "residual blocks (SimBa)", "LayerNorm, SiLU, AdamW")),
        (TD3, "no targets (CrossQ)"),
    ],
)
def test_each_variant_learns_what_actions_are_worth(kind: Kind, variant: str) -> None:
    """One step, reward ``-(a + 0.6)^2``; without a next step, how targets are made of critics does not matter."""
    rng = np.random.default_rng(0)
    actions, obs = rng.uniform(-1, 1, 512), rng.uniform(-1, 1, (512, 2)).astype(np.float32)
    rewards = -np.square(actions + 0.6)
    rows = [(o, (a,), r, o, True, False) for o, a, r in zip(obs, actions, rewards, strict=True)]
    settings: dict[str, Any] = {"units": (32,), "batch_size": 64, "update": "captured"} | CRITICS[variant]
    agent, items = make(kind, **settings), holding(rows, np.float32)
    for _ in range(200):
        agent.opt(items)
    with torch.no_grad():
        values = agent.critics(torch.from_numpy(obs), torch.from_numpy(actions).float()[:, None]).mean(dim=0).numpy()
    assert np.corrcoef(values, rewards)[0, 1] > 0.95
    assert values.mean() == pytest.approx(rewards.mean(), abs=0.3)


# Targets.


def test_each_critic_may_learn_from_its_own_target() -> None:
    agent = make(**QUIET, target_critics="own", discount_factor=0.5)
    for online, behind, value in zip(agent.critics.nets, agent.critics_tgt.nets, (4.0, 8.0), strict=True):
        fix_outputs(online, 1.0)
        fix_outputs(behind, value)
    record = floats(agent.opt(memory(1.0)))
    assert record["loss_critic"] == pytest.approx(((1 - 3) ** 2 + (1 - 5) ** 2) / 2, rel=1e-5)


def test_td_errors_of_own_targets_are_the_mean_over_critics() -> None:
    agent = make(**QUIET, target_critics="own", discount_factor=0.5)
    for online, behind, value in zip(agent.critics.nets, agent.critics_tgt.nets, (4.0, 8.0), strict=True):
        fix_outputs(online, 1.0)
        fix_outputs(behind, value)
    rows = [(ZERO, (0.5,), reward, ZERO, False, False) for reward in (1.0, 2.0, 3.0)]
    weighted = WeightedMemory(items_of(rows, np.float32), [1.0, 1.0, 1.0])
    agent.opt(weighted)
    ((_, errors),) = weighted.told
    assert errors == pytest.approx([3, 4, 5], rel=1e-5)


def test_a_target_is_the_least_of_critics_drawn_anew_for_each_update() -> None:
    targets = (2.0, 4.0, 8.0)
    agent = make(**QUIET, n_critics=3, n_target_critics=2, tau=1e-9, lr=1e-9, discount_factor=1.0)
    for online, behind, value in zip(agent.critics.nets, agent.critics_tgt.nets, targets, strict=True):
        fix_outputs(online, 0.0)
        fix_outputs(behind, value)
    losses = {round(floats(agent.opt(memory(0.0)))["loss_critic"]) for _ in range(40)}
    assert losses == {4, 16}, "the least of two is never the greatest of three"


def test_a_policy_follows_the_mean_of_critics_whose_targets_are_not_their_least() -> None:
    obs, action = torch.zeros(1, 2), torch.zeros(1, 1)
    found = {}
    variants: dict[str, dict[str, Any]] = {
        "least": {},
        "own": {"target_critics": "own"},
        "drawn": {"n_target_critics": 1},
    }
    for name, params in variants.items():
        agent = make(**QUIET, **params)
        for net, value in zip(agent.critics.nets, (4.0, 8.0), strict=True):
            fix_outputs(net, value)
        found[name] = agent._values_to_follow(obs, action).tolist()
    assert found == {"least": [[4.0], [8.0]], "own": [[6.0]], "drawn": [[6.0]]}


def test_rewards_beyond_the_support_count_as_its_ends() -> None:
    critic = {"kind": "categorical", "v_min": -1, "v_max": 1, "n_atoms": 5}
    agent = make(critic=critic, lr=0.05, update="captured")
    for _ in range(200):
        record = floats(agent.opt(memory(100.0, terminated=True)))
    assert record["q_mean"] == pytest.approx(1.0, abs=0.02)


# Without targets.


@EACH
def test_without_targets_there_are_no_target_networks(kind: Kind) -> None:
    agent = make(kind, **CROSSQ)
    assert set(agent.nets) - {"ent_coef", "normalizer"} == {"actor", "critics"}
    assert agent.critics_tgt is agent.critics


@pytest.mark.parametrize("params", [CROSSQ, {"normalization": "batch"}, {"architecture": "flash"}], ids=str)
def test_observations_of_both_ends_go_through_batch_normalised_critics_in_one_pass(params: dict[str, Any]) -> None:
    agent = make(**params, policy_delay=2)
    obs, after = np.full(2, -1.0, np.float32), np.ones(2, np.float32)
    items = holding([(obs, (0.5,), 1.0, after, False, False)] * 4, np.float32)
    agent.opt(items)
    for norm in norms(agent.critics):
        assert norm.num_batches_tracked == 1
    first = norms(agent.critics)[0]
    np.testing.assert_allclose(first.running_mean[:2].numpy(), 0, atol=1e-6)  # Of -1 and 1, both in the batch.
    np.testing.assert_allclose(first.running_var[:2].numpy(), 1, atol=1e-6)


@EACH
def test_statistics_of_a_network_follow_its_own_updates_alone(kind: Kind) -> None:
    agent = make(kind, normalization="batch", policy_delay=3, update="captured")
    for _ in range(7):
        agent.opt(memory())
    assert {int(norm.num_batches_tracked) for norm in norms(agent.critics)} == {7}
    assert {int(norm.num_batches_tracked) for norm in norms(agent.actor)} == {2}


@EACH
def test_acting_and_evaluating_use_running_statistics(kind: Kind) -> None:
    agent, obs = make(kind, **CROSSQ), np.random.default_rng(0).uniform(-1, 1, (8, 2)).astype(np.float32)
    for update in range(4):
        assert not any(norm.training for net in agent.nets.values() for norm in norms(net)), f"update {update}"
        agent.opt(memory())
    agent.eval()
    together, singly = agent.sample(obs), np.concatenate([agent.sample(row[None]) for row in obs])
    np.testing.assert_allclose(together, singly, rtol=1e-5, atol=1e-6)
    before = [norm.running_mean.clone() for norm in norms(agent.actor)]
    agent.train()
    agent.sample(obs)
    assert same(before, [norm.running_mean for norm in norms(agent.actor)])


def test_structured_observations_go_through_critics_in_one_pass_too() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
    agent = SAC(EnvSpec(space, SPEC.action_space), seed=0, units=(8,), batch_size=4, **CROSSQ)
    n, rng = 4, np.random.default_rng(0)
    items: dict[str, Array] = {
        f"{name}/a": rng.uniform(-1, 1, (n, 2)).astype(np.float32) for name in ("obs", "next_obs")
    }
    items |= {f"{name}/b": rng.integers(3, size=n) for name in ("obs", "next_obs")}
    items |= {"action": rng.uniform(-1, 1, (n, 1)).astype(np.float32), "reward": np.ones(n, np.float32)}
    items |= {name: np.zeros(n, np.bool_) for name in ("terminated", "truncated")}
    assert agent.opt(ItemMemory(items)) is not None


# Imitation.


@EACH
def test_the_policy_is_between_the_actions_of_the_data_and_those_that_critics_value(kind: Kind) -> None:
    """The value of an action a is a, and the data has 0.5: the way ends where ``1 = 2 weight a (a - 0.5)``."""
    quiet = {"ent_coef": 1e-9, "auto_ent_coef": False, "min_lstd": -10, "max_lstd": -10} if kind is SAC else {}
    agent = make(kind, imitation=2.0, policy_delay=1, lr=0.05, units=(), update="captured", **quiet)
    agent._critics_optimizer.param_groups[0]["lr"] = 0.0
    for net in agent.critics.nets:
        fix_outputs(net, 0.0)
        with torch.no_grad():
            next(net.parameters())[0, -1] = 1.0
    for _ in range(600):
        agent.opt(memory())
    agent.eval()
    assert agent.sample(ZERO[None]).item() == pytest.approx((1 + 5**0.5) / 4, abs=0.01)


@pytest.mark.parametrize(("truncated", "expected"), [(False, 1 + 0.5 * (4 - 2 * 0.25)), (True, 1 + 0.5 * 4)])
@EACH
def test_targets_pay_for_the_distance_to_the_next_action_of_the_data(
    kind: Kind, truncated: bool, expected: float
) -> None:
    """The policy's next action is 0, the data's is 0.5, and a critic's target values every action at 4."""
    quiet = {"ent_coef": 1e-9, "auto_ent_coef": False, "min_lstd": -20, "max_lstd": -20} if kind is SAC else {}
    quiet |= {"target_noise": 0.0} if kind is TD3 else {}
    agent = make(kind, critic_imitation=2.0, discount_factor=0.5, units=(), **quiet)
    fix_outputs(agent.actor, *((0.0, -20.0) if kind is SAC else (0.0,)))
    if kind is TD3:
        fix_outputs(agent.nets["actor_tgt"], 0.0)
    for online, behind in zip(agent.critics.nets, agent.critics_tgt.nets, strict=True):
        fix_outputs(online, 0.0)
        fix_outputs(behind, 4.0)
    row = (ZERO, (0.1,), 1.0, ZERO, False, truncated)
    record = floats(agent.opt(holding([row], np.float32, next_action=np.array([[0.5]], np.float32))))
    assert record["loss_critic"] == pytest.approx(expected**2, rel=1e-4)


@EACH
def test_transitions_without_next_actions_are_refused_by_the_setting_that_adds_them(kind: Kind) -> None:
    with pytest.raises(ConfigError, match=r"critic_imitation: expected .* replay\.view\.params\.next_actions: true"):
        make(kind, critic_imitation=1.0).opt(memory())


# The policy's delay.


@pytest.mark.parametrize("delay", [1, 3])
def test_sacs_policy_waits_for_its_turn_while_its_targets_follow_each_update(delay: int) -> None:
    agent = make(SAC, policy_delay=delay, update="captured")
    for update in range(1, 8):
        before = [copies(net) for net in (agent.actor, agent.critics_tgt)]
        record = agent.opt(memory())
        assert record is not None
        after = [copies(net) for net in (agent.actor, agent.critics_tgt)]
        moved = [not same(old, new) for old, new in zip(before, after, strict=True)]
        assert moved == [update % delay == 0, True], f"update {update}"
        assert ("loss_actor" in record) is (update % delay == 0)


# Observations.


@EACH
def test_normalised_observations_make_the_scale_of_a_sensor_of_no_account(kind: Kind) -> None:
    rng = np.random.default_rng(0)
    small = rng.uniform(-1, 1, (256, 2)).astype(np.float32)
    policies = []
    for scale in (1.0, 128.0):
        obs = small * np.float32(scale)
        rows = [(o, (0.5,), 1.0, o, False, False) for o in obs]
        agent, items = make(kind, normalize_observations=True, batch_size=256), holding(rows, np.float32)
        for _ in range(5):
            agent.opt(items)
        agent.eval()
        policies.append(agent.sample(obs[:20]))
    np.testing.assert_allclose(policies[0], policies[1], rtol=1e-3, atol=1e-4)


# Refusals.


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"critic": {"kind": "categorical", "v_min": 1, "v_max": -1}}, r"v_min \(1.0\) must be below v_max \(-1.0\)"),
        ({"critic": {"kind": "categorical"}}, "v_min"),
        ({"targets": False}, "targets: false needs critics that are normalised.*normalization: batch"),
        ({"targets": False, "normalization": "batch", "tau": 0.01}, "tau is the speed of target networks"),
        ({"normalization": "batch", "batch_size": 1}, "batch normalization needs a batch_size of at least 2"),
        ({"architecture": "flash", "batch_size": 1}, "batch normalization needs a batch_size of at least 2"),
        ({"max_return": 5.0}, "max_return is a limit of normalised rewards; set normalize_rewards: true too"),
        ({"architecture": "simba", "units": (8, 4)}, "units: the blocks of simba are all of one width"),
        ({"architecture": "simba", "critic_units": ()}, "critic_units: the blocks of simba are all of one width"),
        ({"n_target_critics": 3}, r"n_target_critics \(3\) is above n_critics \(2\)"),
        ({"target_critics": "own", "n_target_critics": 1}, "own cannot be combined with n_target_critics"),
        ({"target_critics": "own", "critic": {"kind": "quantile"}}, "target_critics: own cannot be combined"),
        ({"critic_loss": "mse", "critic": {"kind": "quantile"}}, "critic_loss is for scalar critics"),
    ],
)
@pytest.mark.parametrize("config", [SACConfig, TD3Config])
def test_settings_that_do_not_go_together_are_refused(
    config: type[SACConfig | TD3Config], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(config, params)


def test_simba_and_layer_norm_may_go_without_targets() -> None:
    for layers in ({"architecture": "simba"}, {"normalization": "layer"}):
        validate(SACConfig, {"targets": False, **layers})


TWO_ACTIONS = EnvSpec(
    gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32)),
)
MEMORY = holding([(ZERO, (0.5, 5.0), 1.0, ZERO, False, False)], np.float32)


class Peak(gymnasium.Env[Array, Any]):
    """One step; pays for actions above 0.8 and costs a little for all others, the more the larger they are."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        value = float(action[0])
        return np.zeros(1, np.float32), 1.0 if value > 0.8 else -0.1 * abs(value), True, False, {}


def actions(agent: Bootstrapping, n: int = 4000) -> Array:
    """Actions that explore, as shares of the way from the lowest to the highest, ``[n, 2]``."""
    agent.train()
    shares: Array = (agent.sample(np.zeros((n, 2), np.float32)) - [-1, 0]) / [2, 10]
    return shares


@EACH
def test_before_the_first_opt_step_actions_are_uniform_over_the_action_space(kind: type[Bootstrapping]) -> None:
    shares = actions(kind(TWO_ACTIONS, seed=0))
    assert shares.min() >= 0
    assert shares.max() <= 1
    for share in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(shares, share, axis=0), share, atol=0.03)


@EACH
def test_from_the_first_opt_step_on_the_policy_explores(kind: type[Bootstrapping]) -> None:
    learner = kind(TWO_ACTIONS, seed=0, units=(8,), batch_size=4)
    started = actions(kind(TWO_ACTIONS, seed=0, units=(8,), random_opts=0)).std()
    learner.opt(MEMORY)
    assert actions(learner).std() == pytest.approx(started, rel=0.3)
    assert actions(learner).std() != pytest.approx(12**-0.5, rel=0.02)


def test_an_actor_goes_by_the_opt_steps_of_its_model() -> None:
    actor = TD3(TWO_ACTIONS, seed=0, random_opts=100)
    for opt_steps, is_random in ((0, True), (99, True), (100, False)):
        actor.sync_model(model_of(actor, opt_steps))
        assert bool(actions(actor).std() > 0.25) == is_random


def test_without_exploration_no_action_is_random() -> None:
    agent = TD3(TWO_ACTIONS, seed=0)
    agent.eval()
    assert len(np.unique(agent.sample(np.zeros((10, 2), np.float32)), axis=0)) == 1


def test_a_resumed_agent_does_not_begin_again() -> None:
    agent = TD3(TWO_ACTIONS, seed=0, units=(8,), batch_size=4)
    agent.opt(MEMORY)
    resumed = TD3(TWO_ACTIONS, seed=1, units=(8,), batch_size=4)
    resumed.load_training_state(agent.training_state())
    assert actions(resumed).std() < 0.25


def test_td3_finds_a_reward_that_its_first_policy_never_comes_near(tmp_path: Path) -> None:
    config = {
        "run_dir": str(tmp_path / "run"),
        "env": {"target": "tests.common.agents.test_bootstrapping:Peak"},
        "agent": {"target": "common.agents.td3:TD3", "params": {"units": [32], "lr": 0.001, "batch_size": 64}},
        "trainer": {"max_opts": 700, "warmup_period": 100, "eval_interval": 700},
        "evaluator": {"episodes": 1},
    }
    assert train_in_turns(validate(RunConfig, config)).best_score == 1.0
