from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from torch.nn import functional

from common.agents.ppo import PPO
from common.agents.recurrent_ppo import RecurrentPPO
from common.data import Array, Items
from common.errors import ConfigError
from common.interfaces import EnvSpec
from common.settings import validate
from common.spaces import to_columns
from crossborder.testing import ItemMemory, check_agent
from learner.replay.reader import NothingToDrawError
from learner.views.rollouts import Rollouts
from tests.common.agents.parts import Structured, Whole, copies, floats, model_of, same

OBS = Box(-1, 1, (2,), np.float32)
CHOICES = EnvSpec(OBS, Discrete(3, start=5))
LEVERS = EnvSpec(OBS, Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)))
SWITCHES = EnvSpec(OBS, MultiDiscrete([2, 3], start=[0, 5]))
BOTH = EnvSpec(OBS, Dict({"aim": Box(-2, 2, (2, 1), np.float32), "gear": MultiDiscrete([2, 3], start=[0, 5])}))
SPECS = pytest.mark.parametrize(
    "spec", [CHOICES, LEVERS, SWITCHES, BOTH], ids=["Discrete", "Box", "MultiDiscrete", "Dict"]
)
SMALL: dict[str, Any] = {"units": (8,), "batch_size": 4, "minibatches": 2, "epochs": 2}
VIEW = partial(Rollouts, length=6)
GAMMA, LAMBDA = 0.99, 0.95


def make(spec: EnvSpec = CHOICES, *, seed: int = 0, **params: Any) -> PPO:
    """Eager if nothing else is asked for: capturing an update takes as long as a hundred of them."""
    return PPO(spec, seed=seed, **(SMALL | {"update": "eager"} | params))


def played(agent: PPO, n: int = 4, length: int = 8, reward: Any = None, seed: int = 0) -> Items:
    """Rollouts of n lanes that the agent plays in train mode; each fourth step ends an episode, in one of two ways."""
    rng = np.random.default_rng(seed)
    obs, beyond = (rng.uniform(-1, 1, (n, length + 1, 2)).astype(np.float32) for _ in range(2))
    agent.train()
    steps: list[Items] = []
    for t in range(length):
        actions = to_columns("action", agent.sample(obs[:, t]))
        steps.append(actions | {name: column.copy() for name, column in agent.extras().items()})
    columns = {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
    rewards = rng.normal(size=(n, length)) if reward is None else reward(columns["action"])
    ends = (np.arange(length) + np.arange(n)[:, None]) % 4 == 3
    is_cut = ends & (np.arange(n) % 2 == 1)[:, None]
    return {
        "obs": obs[:, :-1].copy(),
        "next_obs": np.where(ends[..., None], beyond[:, :-1], obs[:, 1:]),
        **columns,
        "reward": rewards.astype(np.float32),
        "terminated": ends & ~is_cut,
        "truncated": is_cut,
        "version": np.zeros((n, length), np.int64),
    }


def optimised(agent: PPO, items: Items) -> dict[str, float]:
    return floats(agent.opt(Whole(items)))


def values_of(agent: PPO, obs: Array) -> Array:
    """The values of observations ``[B, L, 2]``, ``[B, L]``."""
    with torch.no_grad():
        values: Array = agent.policy_net(torch.from_numpy(obs.reshape(-1, 2)))[1].numpy().reshape(obs.shape[:2])
    return values


def advantages_of_sb3(agent: PPO, items: Items) -> tuple[Array, Array]:
    """``OnPolicyAlgorithm.collect_rollouts`` and ``RolloutBuffer.compute_returns_and_advantage``, slowly."""
    value, after = (values_of(agent, items[name]) for name in ("obs", "next_obs"))
    n, length = value.shape
    advantages = np.zeros((n, length))
    for lane in range(n):
        last = 0.0
        for t in reversed(range(length)):
            reward, is_end = (
                float(items["reward"][lane, t]),
                items["terminated"][lane, t] or items["truncated"][lane, t],
            )
            if items["truncated"][lane, t]:
                reward += GAMMA * after[lane, t]  # TimeLimit.truncated: the terminal observation's value.
            next_value = after[lane, t] if t == length - 1 else value[lane, t + 1]
            delta = reward + GAMMA * next_value * (not is_end) - value[lane, t]
            last = delta + GAMMA * LAMBDA * (not is_end) * last
            advantages[lane, t] = last
    return advantages, advantages + value


def loss_of_sb3(agent: PPO, steps: dict[str, torch.Tensor], clip: float, entropy_cost: float) -> torch.Tensor:
    """The loss of ``PPO.train`` of stable-baselines3, with its ``vf_coef`` of 0.5."""
    outputs, values = agent.policy_net(steps["obs"])
    log_prob, entropy = agent.actions.log_prob(outputs, steps["choice"]), agent.actions.entropy(outputs)
    advantages = (steps["advantage"] - steps["advantage"].mean()) / (steps["advantage"].std() + 1e-8)
    ratio = torch.exp(log_prob - steps["log_prob"])
    unclipped, clipped = advantages * ratio, advantages * torch.clamp(ratio, 1 - clip, 1 + clip)
    policy_loss = -torch.min(unclipped, clipped).mean()
    return policy_loss + entropy_cost * -entropy.mean() + 0.5 * functional.mse_loss(steps["return"], values)


@SPECS
def test_an_opt_step_is_that_of_stable_baselines3(spec: EnvSpec) -> None:
    """Advantages, losses and gradients of each minibatch: the parameters after all of them are the same."""
    agent = make(spec, epochs=3, minibatches=4, entropy_cost=0.01, lr=0.01, optimizer={"eps": 1e-5})
    items = played(agent)
    peer = copy.deepcopy(agent)
    advantages, returns = advantages_of_sb3(peer, items)
    columns = {"obs": items["obs"], "log_prob": items["log_prob"], "advantage": advantages, "return": returns}
    steps = {name: torch.from_numpy(column.astype(np.float32)).flatten(0, 1) for name, column in columns.items()}
    with torch.no_grad():
        steps["choice"] = peer._choice({name: torch.from_numpy(column) for name, column in items.items()})
    optimizer = torch.optim.Adam(peer.policy_net.parameters(), lr=0.01, eps=1e-5)
    generator = torch.Generator().manual_seed(0)
    generator.set_state(agent._generator.get_state())
    losses = []
    for _ in range(3):
        for part in torch.randperm(32, generator=generator).chunk(4):
            loss = loss_of_sb3(peer, {name: column[part] for name, column in steps.items()}, 0.2, 0.01)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(peer.policy_net.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    record = optimised(agent, items)
    found = record["loss_policy"] + record["loss_baseline"] - 0.01 * record["entropy"]
    assert found == pytest.approx(np.mean(losses), abs=1e-6)
    assert record["clipped_share"] > 0, "the case must clip"
    for (name, mine), theirs in zip(agent.policy_net.named_parameters(), peer.policy_net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6, msg=name)


def test_the_gradients_of_one_minibatch_are_those_of_stable_baselines3() -> None:
    agent = make(epochs=1, minibatches=1, max_grad_norm=None, lr=1e-12)
    items = played(agent)
    advantages, returns = advantages_of_sb3(agent, items)
    columns = {"obs": items["obs"], "log_prob": items["log_prob"], "advantage": advantages, "return": returns}
    steps = {name: torch.from_numpy(column.astype(np.float32)).flatten(0, 1) for name, column in columns.items()}
    steps["choice"] = torch.from_numpy(items["action"].reshape(-1, 1) - 5)
    expected = torch.autograd.grad(loss_of_sb3(agent, steps, 0.2, 0.0), list(agent.policy_net.parameters()))
    optimised(agent, items)
    for parameter, gradient in zip(agent.policy_net.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", [LEVERS, SWITCHES], ids=["Box", "MultiDiscrete"])
def test_it_fits_and_its_captured_updates_are_the_eager_ones(spec: EnvSpec) -> None:
    """With Discrete actions: test_conformance.py; in a Dict and a Tuple: test_structured_actions.py."""
    make_agent = partial(PPO, **SMALL, share_layers=True, clip_range_values=0.2, target_kl=0.5)
    check_agent(make_agent, Structured(spec.observation_space, spec.action_space), view=VIEW, steps=150)
    assert PPO(spec, seed=0, **SMALL).is_captured


def test_it_learns_from_structured_observations_and_pictures_and_normalises_them() -> None:
    picture = Box(0, 255, (1, 12, 12), np.uint8)
    space = Dict({"state": OBS, "gear": Discrete(4, start=2), "camera": picture})
    make_agent = partial(PPO, **(SMALL | {"epochs": 1}), normalize_observations=True, feature_dim=8)
    check_agent(make_agent, Structured(space, Discrete(2)), view=VIEW, steps=150)


@SPECS
@pytest.mark.parametrize("normalize", [False, True])
def test_on_its_own_steps_every_ratio_is_1_when_an_opt_step_begins(spec: EnvSpec, normalize: bool) -> None:
    """Also in the second opt step with normalised observations: the learner sees the numbers that the actor saw."""
    agent = make(spec, normalize_observations=normalize, epochs=1, minibatches=1)
    for seed in range(2):
        record = optimised(agent, played(agent, seed=seed))
        assert record["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert record["kl"] == pytest.approx(0.0, abs=1e-6)
        assert record["clipped_share"] == 0.0


def test_it_learns_which_action_is_rewarded() -> None:
    agent = make(units=(32,), lr=0.003, discount_factor=0.0, update="captured")
    for seed in range(60):
        optimised(agent, played(agent, seed=seed, reward=lambda action: action == 6))
    agent.eval()
    assert (agent.sample(np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32)) == 6).all()


def test_it_learns_which_continuous_action_is_rewarded() -> None:
    agent = make(LEVERS, units=(32,), lr=0.006, epochs=4, update="captured")
    target = np.array([1.0, 3.0], np.float32)

    def reward(action: Array) -> Array:
        return np.asarray(-np.square((action - target) / [2, 5]).sum(axis=2))

    for seed in range(150):
        optimised(agent, played(agent, n=8, seed=seed, reward=reward))
    agent.eval()
    found = agent.sample(np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32))
    np.testing.assert_allclose(found.mean(axis=0), target, atol=0.5)


@pytest.mark.parametrize(("actor_was_surer_by", "ratio_mean"), [(50.0, 0.0), (-50.0, 1.0)])
def test_losses_stay_finite_however_far_the_policy_is_from_the_one_that_acted(
    actor_was_surer_by: float, ratio_mean: float
) -> None:
    agent = make(lr=1e-9, epochs=1, minibatches=1)
    items = played(agent)
    record = optimised(agent, items | {"log_prob": items["log_prob"] + np.float32(actor_was_surer_by)})
    assert record["ratio_mean"] == pytest.approx(ratio_mean, abs=1e-6)
    assert record["clipped_share"] == 1.0
    assert all(np.isfinite(value) for value in record.values())


def test_the_policy_is_clipped_against_the_one_that_acted() -> None:
    """An actor that was half as likely to take each action: the policy may not move further from it."""
    agent = make(lr=1e-9, epochs=1, minibatches=1)
    items = played(agent)
    assert optimised(agent, items)["clipped_share"] == 0.0
    half = optimised(agent, items | {"log_prob": items["log_prob"] - np.float32(np.log(2))})
    assert half["clipped_share"] == 1.0
    assert half["kl"] == pytest.approx(2 - 1 - np.log(2), rel=1e-4)


def test_steps_that_are_too_old_are_left_out_and_counted() -> None:
    agent = make(max_lag=2, epochs=1, minibatches=1, lr=1e-9)
    agent.sync_model(model_of(agent, 10))
    items = played(agent)
    items["version"][:] = 8
    items["version"][3] = 7
    twin = copy.deepcopy(agent)
    record = optimised(agent, items)
    assert record["left_out"] == 8, "of 32 steps"
    assert record["version_age"] == pytest.approx(2.0), "of the steps that are learnt from"
    alone = optimised(twin, {name: column[:3] for name, column in items.items()})
    for name in ("loss_policy", "loss_baseline", "entropy", "grad_norm"):
        assert record[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6), name


class OneAfterAnother(ItemMemory):
    """Gives another batch in each draw, and then has nothing to draw from."""

    def __init__(self, *batches: Items) -> None:
        super().__init__(batches[0])
        self.batches = list(batches)

    def batch(self, size: int) -> Items:
        if not self.batches:
            raise NothingToDrawError
        return self.batches.pop(0)


def test_batches_of_which_every_step_is_too_old_are_passed_over() -> None:
    agent = make(max_lag=2)
    agent.sync_model(model_of(agent, 10))
    old = played(agent)
    new = old | {"version": np.full_like(old["version"], 9)}
    memory = OneAfterAnother(old, old, new, old)
    record = agent.opt(memory)
    assert record is not None
    assert float(record["left_out"]) == 64
    before = copies(agent.policy_net)
    with pytest.raises(NothingToDrawError):
        agent.opt(memory)
    assert agent.opt(Whole(old)) is None, "a memory that would give them for ever is left alone"
    assert same(copies(agent.policy_net), before)


def test_an_opt_step_ends_when_the_policy_has_moved_too_far() -> None:
    far, near = (make(lr=0.05, epochs=6, target_kl=kl, update="captured") for kl in (1e-6, 1e9))
    assert optimised(far, played(far))["epochs"] == 1.0
    assert optimised(near, played(near))["epochs"] == 6.0


def test_the_clip_range_follows_its_schedule() -> None:
    schedule = {"steps": 16, "final": 0.0}
    agent = make(
        lr=0.05, epochs=4, minibatches=4, clip_schedule=schedule, normalize_advantages=False, update="captured"
    )
    first = optimised(agent, played(agent))
    later = optimised(agent, played(agent))
    assert first["clipped_share"] < 1.0
    assert later["clipped_share"] > 0.9, "the range is 0 after 16 gradient steps"


def test_a_value_that_has_moved_beyond_its_range_no_longer_counts() -> None:
    losses = [optimised(make(lr=0.05, clip_range_values=limit), played(make())) for limit in (1e-3, None)]
    assert losses[0]["loss_baseline"] > losses[1]["loss_baseline"]


def test_entropy_is_rewarded() -> None:
    entropies = []
    for cost in (0.0, 1.0):
        agent = make(lr=0.003, entropy_cost=cost, update="captured")
        for seed in range(40):
            record = optimised(agent, played(agent, seed=seed, reward=lambda action: action == 6))
        entropies.append(record["entropy"])
    assert entropies[0] < 0.5
    assert 0.8 < entropies[1] <= np.log(3) + 1e-6


@pytest.mark.parametrize("change", ["transitions", "sequences"])
def test_batches_that_are_no_rollouts_are_refused_by_name(change: str) -> None:
    agent = make()
    items = played(agent)
    if change == "transitions":
        items = {name: column[:, 0] for name, column in items.items()}
    else:
        items["mask"] = np.ones_like(items["terminated"])
    with pytest.raises(ConfigError, match=r"replay\.view: PPO learns from rollouts; set target: .*Rollouts"):
        agent.opt(Whole(items))


def test_rows_without_log_probabilities_are_refused_by_name() -> None:
    agent = make(LEVERS)
    items = {name: column for name, column in played(agent).items() if name not in ("log_prob", "choice")}
    with pytest.raises(ConfigError, match=r"replay: PPO needs the columns choice, log_prob, which its actors record"):
        agent.opt(Whole(items))


def test_minibatches_that_do_not_divide_a_batch_are_refused_by_name() -> None:
    agent = make(minibatches=5)
    with pytest.raises(ConfigError, match=r"minibatches: expected a number that divides the 32 steps .* found 5"):
        agent.opt(Whole(played(agent)))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"target_kl": 0.0}, "target_kl"),
        ({"target_kl": -0.1}, "target_kl"),
        ({"clip_range": 0.0}, "clip_range"),
        ({"gae_lambda": 1.5}, "gae_lambda"),
        ({"share_layers": True, "critic_keys": ["whole"]}, "share_layers: true or critic_keys, not both"),
        ({"network": {"target": "common.agents.networks:ConvNet"}, "activation": "relu"}, "activation"),
        ({"network": {"target": "common.agents.networks:ConvNet"}, "units": (8,)}, "give units or network, not both"),
    ],
)
def test_settings_that_mean_nothing_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(PPO.Config, params, "agent.params")


HIDDEN = EnvSpec(Dict({"own": OBS, "action_mask": Box(0, 1, (3,), np.int8), "whole": OBS}), Discrete(3))
"""Each leaf of floats has two elements; the mask is seen by all."""


@pytest.mark.parametrize("own", [False, True])
def test_policy_and_baseline_see_the_leaves_of_their_keys_and_acting_needs_no_others(own: bool) -> None:
    network = {"network": {"target": "tests.common.agents.test_ppo:OwnJoint"}, "units": None}
    keys: dict[str, Any] = {"actor_keys": ["own"], "critic_keys": ["whole"], "normalize_observations": True}
    params = {name: value for name, value in (SMALL | keys | (network if own else {})).items() if value}
    agent = PPO(HIDDEN, seed=0, **params)
    rng = np.random.default_rng(0)
    obs = {name: rng.uniform(-1, 1, (20, 2)).astype(np.float32) for name in ("own", "whole")}
    obs |= {"action_mask": np.tile(np.array([0, 1, 1], np.int8), (20, 1))}
    seen = {name: leaf for name, leaf in obs.items() if name != "whole"}
    for act in (agent.eval, agent.train):
        act()
        assert (agent.sample(seen) != 0).all()
    agent.eval()
    tensors = {name: torch.from_numpy(leaf) for name, leaf in seen.items()}
    np.testing.assert_array_equal(agent.policy()(tensors).numpy(), agent.sample(seen))
    zeros, ones = torch.zeros(20, 2), torch.ones(20, 2)
    outputs, value = agent.policy_net(tensors | {"whole": zeros})
    other_outputs, other_value = agent.policy_net(tensors | {"own": ones, "whole": zeros})
    assert not torch.equal(other_outputs, outputs)
    assert torch.equal(other_value, value)
    assert not torch.equal(agent.policy_net(tensors | {"whole": ones})[1], value)


class OwnJoint(torch.nn.Module):
    """A user's own network for leaves of two elements."""

    def __init__(self, in_shape: dict[str, tuple[int, ...]], out_dim: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2 * len(in_shape), out_dim)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat([*obs.values()], dim=1))  # type: ignore[no-any-return]


def test_it_learns_from_what_only_the_baseline_sees() -> None:
    agent = PPO(HIDDEN, seed=0, **SMALL, lr=0.01, discount_factor=0.0, actor_keys=["own"])
    items = played(make())
    for name in ("obs", "next_obs"):
        whole = items.pop(name)
        mask = np.ones((*whole.shape[:2], 3), np.int8)
        items |= {f"{name}/own": np.zeros_like(whole), f"{name}/whole": whole, f"{name}/action_mask": mask}
    items["action"] -= CHOICES.action_space.start  # type: ignore[attr-defined]
    items["reward"] = items["obs/whole"][..., 0]
    losses = [optimised(agent, items)["loss_baseline"] for _ in range(50)]
    assert losses[-1] < losses[0] / 10


def test_keys_are_refused_where_policy_and_baseline_share_a_memory() -> None:
    for key in ("actor_keys", "critic_keys"):
        with pytest.raises(ConfigError, match=f"{key}: remove it: policy and baseline share a memory, which sees all"):
            validate(RecurrentPPO.Config, {key: ["whole"]}, "agent.params")


def test_keys_that_name_the_mask_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.params\.actor_keys: expected parts beside the mask .*'action_mask'"):
        PPO(HIDDEN, seed=0, **SMALL, actor_keys=["action_mask"])


def test_a_key_that_is_no_leaf_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.params\.critic_keys: expected paths of leaves.*'hole'.*'whole'"):
        PPO(HIDDEN, seed=0, **SMALL, critic_keys=["hole"])


@pytest.mark.parametrize("share_layers", [False, True])
def test_it_begins_with_actions_that_are_about_as_likely_and_values_of_size_1(share_layers: bool) -> None:
    agent = make(units=(64, 64), share_layers=share_layers)
    obs = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (200, 2)).astype(np.float32))
    with torch.no_grad():
        outputs, value = agent.policy_net(obs)
    assert float(outputs.abs().max()) < 0.1
    assert float(value.std()) > 0.1


def test_a_network_of_the_users_own_keeps_its_first_weights() -> None:
    spec = EnvSpec(Box(0, 255, (1, 12, 12), np.uint8), Discrete(2))
    own = PPO(spec, seed=0, network={"target": "tests.common.agents.test_ppo:OwnNetwork"})
    assert not own.is_captured
    assert all(
        bool((parameter == 3).all()) for name, parameter in own.policy_net.named_parameters() if "lstd" not in name
    )


class OwnNetwork(torch.nn.Linear):
    """A network whose weights are all 3."""

    def __init__(self, in_shape: tuple[int, ...], out_dim: int) -> None:
        super().__init__(int(np.prod(in_shape)), out_dim)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 3.0)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return super().forward(obs.float().flatten(1))
