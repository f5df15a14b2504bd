from __future__ import annotations

import copy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.machinery.update import Inference
from common.agents.noise import ActionNoise, LaneNoise, StateDependentActor, StateDependentNoise
from common.agents.sac import SAC, SACConfig
from common.agents.td3 import TD3
from common.data import Array
from common.errors import ConfigError
from common.interfaces import Agent
from common.lanes.building import spec_of
from common.settings import Settings, validate
from crossborder.testing import check_agent
from crossborder.testing.agent_checks import MakeAgent

CPU = torch.device("cpu")
KINDS: dict[str, Any] = {
    "white, laddered": {"kind": "gaussian", "std": 0.1, "max_std": 0.9},
    "ou": {"kind": "ou", "std": 0.3},
    "pink": {"kind": "pink", "std": 0.3},
    "repeated": {"kind": "repeated", "std": 0.3, "exponent": 0.1, "longest": 1000},
    "repeated, laddered": {"kind": "repeated", "std": 0.1, "max_std": 0.9, "exponent": 0.5, "longest": 50},
    "pink, laddered": {"kind": "pink", "std": 0.1, "max_std": 0.9, "horizon": 50},
}


class Holder(Settings):
    noise: ActionNoise


def make(noise: Any, size: int = 2, seed: int = 0) -> LaneNoise:
    return LaneNoise(validate(Holder, {"noise": noise}).noise, size, torch.Generator().manual_seed(seed), CPU)


def all_begin(n: int) -> Array:
    return np.ones(n, np.bool_)


def add(noise: LaneNoise, obs: torch.Tensor) -> torch.Tensor:
    return obs + noise.draw(len(obs))


def draw_many(noise: LaneNoise, n: int, steps: int) -> Array:
    """``[steps, n, A]``."""
    return torch.stack([noise.draw(n) for _ in range(steps)]).numpy()


def test_a_number_stands_for_white_noise_of_this_deviation_and_draws_as_ever() -> None:
    expected = torch.randn((3, 2), generator=torch.Generator().manual_seed(0)) * 0.25
    assert torch.equal(make(0.25).draw(3), expected)
    assert torch.equal(make({"kind": "gaussian", "std": 0.25}).draw(3), expected)


@pytest.mark.parametrize(
    ("noise", "problem"),
    [
        ({"kind": "ou", "std": 0.3, "max_std": 0.2}, r"max_std \(0.2\) is below std \(0.3\)"),
        ({"kind": "pink"}, "noise.std: expected a value, found none"),
        ({"kind": "brown", "std": 1.0}, "gaussian"),
        (-0.1, "greater than or equal to 0"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(noise: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make(noise)


@pytest.mark.parametrize("noise", [0.3, *({"kind": kind, "std": 0.3} for kind in ("ou", "pink", "repeated"))])
def test_every_step_has_the_mean_0_and_the_deviation_of_the_settings_from_the_first_on(noise: Any) -> None:
    source = make(noise)
    source.begin(all_begin(5000))
    for step in draw_many(source, 5000, 3):
        assert step.mean() == pytest.approx(0.0, abs=0.01)
        assert step.std() == pytest.approx(0.3, rel=0.03)


def test_ornstein_uhlenbeck_noise_keeps_its_share_of_the_step_before() -> None:
    source = make({"kind": "ou", "std": 1.0, "theta": 0.2})
    source.begin(all_begin(20_000))
    first, second, third = draw_many(source, 20_000, 3)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] == pytest.approx(0.8, abs=0.01)
    assert np.corrcoef(first.ravel(), third.ravel())[0, 1] == pytest.approx(0.64, abs=0.02)


@pytest.mark.parametrize("some", [False, True])
def test_repeated_noise_stays_for_a_number_of_steps_of_a_zeta_distribution(some: bool) -> None:
    source, n, steps = make({"kind": "repeated", "std": 1.0, "exponent": 1.5, "longest": 4}), 20_000, 13
    lanes = np.arange(n) if some else None
    source.begin(all_begin(n), lanes)
    noise = torch.stack([source.draw(n, lanes) for _ in range(steps)]).numpy()
    changes = (noise[1:] != noise[:-1]).all(axis=2)  # [steps - 1, n]
    assert np.array_equal(changes, (noise[1:] != noise[:-1]).any(axis=2)), "all dimensions change together"
    first = changes.argmax(axis=0) + 1  # For how long the first noise of each lane stayed.
    weights = np.array([1, 2**-1.5, 3**-1.5, 4**-1.5])
    np.testing.assert_allclose(np.bincount(first)[1:] / n, weights / weights.sum(), atol=0.01)
    ahead = changes[np.minimum(first + np.arange(1, 5)[:, None] - 1, steps - 2), np.arange(n)]
    np.testing.assert_allclose(np.bincount(ahead.argmax(axis=0) + 1)[1:] / n, weights / weights.sum(), atol=0.01)


def test_lanes_and_dimensions_are_independent() -> None:
    source = make({"kind": "pink", "std": 1.0}, size=2)
    source.begin(all_begin(20_000))
    noise = source.draw(20_000).numpy()
    assert np.corrcoef(noise[:, 0], noise[:, 1])[0, 1] == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(("noise", "slope"), [(1.0, 0.0), ({"kind": "pink", "std": 1.0, "horizon": 512}, -1.0)])
def test_the_power_of_pink_noise_falls_in_proportion_to_the_frequency_and_that_of_white_noise_does_not(
    noise: Any, slope: float
) -> None:
    source, steps = make(noise, size=4), 2048
    source.begin(all_begin(64))
    signal = draw_many(source, 64, steps)
    power = (np.abs(np.fft.rfft(signal, axis=0)) ** 2).mean(axis=(1, 2))
    frequency = np.fft.rfftfreq(steps)
    within = (frequency > 1 / 512) & (frequency < 0.3)
    found = np.polyfit(np.log(frequency[within]), np.log(power[within]), 1, w=1 / np.sqrt(frequency[within]))[0]
    assert found == pytest.approx(slope, abs=0.12)


@pytest.mark.parametrize("noise", KINDS.values(), ids=KINDS)
def test_an_episode_begins_anew_in_its_own_lane_only(noise: Any) -> None:
    one, other = make(noise), make(noise)
    for source in (one, other):
        source.begin(all_begin(3))
        source.draw(3)
    begins = np.array([False, True, False])
    one.begin(begins)
    other.begin(np.zeros(3, np.bool_))  # Draws as many numbers.
    before, after = other.draw(3).numpy(), one.draw(3).numpy()
    np.testing.assert_array_equal(before[~begins], after[~begins])
    assert (before[begins] != after[begins]).all()


def test_each_lane_has_a_size_of_its_own_between_the_bounds_for_a_whole_episode() -> None:
    source = make({"kind": "gaussian", "std": 0.2, "max_std": 0.6}, size=3000)
    source.begin(all_begin(200))
    sizes = [source.draw(200).numpy().std(axis=1) for _ in range(2)]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=0.1)
    assert sizes[0].min() == pytest.approx(0.2, abs=0.03)
    assert sizes[0].max() == pytest.approx(0.6, abs=0.03)
    assert sizes[0].mean() == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("noise", KINDS.values(), ids=KINDS)
def test_captured_actions_have_the_noise_of_eager_ones_also_when_episodes_begin(noise: Any) -> None:
    found = []
    for captured in (True, False):
        source = make(noise)
        act = Inference(partial(add, source), CPU, captured=captured)
        rows = []
        for n, begins in ((2, [1, 1]), (2, []), (2, [0, 1]), (3, [1, 1, 1]), (2, [0, 0]), (2, [])):
            if begins:
                source.begin(np.array(begins, np.bool_))
            rows.append(act(np.zeros((n, 2), np.float32)).tolist())
        found.append(rows)
    assert found[0] == found[1]


@pytest.mark.parametrize("noise", KINDS.values(), ids=KINDS)
def test_restored_noise_goes_on_as_if_it_had_never_stopped(noise: Any) -> None:
    source, generator = make(noise), torch.Generator().manual_seed(7)
    source.begin(all_begin(3))
    source.draw(3)
    tensors = {f"noise.{name}": tensor.clone() for name, tensor in source.collect().items()}
    again = make(noise, seed=1)
    again.load(tensors, "noise.")
    for each in (source, again):
        each._generator.set_state(generator.get_state())
    assert np.array_equal(draw_many(again, 3, 4), draw_many(source, 3, 4))


def test_a_run_in_the_midst_of_an_episode_does_not_go_on_with_another_noise() -> None:
    white, pink, ou = make(0.1), make({"kind": "pink", "std": 0.1}), make({"kind": "ou", "std": 0.1})
    pink.begin(all_begin(1))
    with pytest.raises(ValueError, match=r"noise.processes: expected \[1, 2, 1\], found \[1, 2, 6\]"):
        ou.load({f"noise.{name}": tensor for name, tensor in pink.collect().items()}, "noise.")
    ou.load({f"noise.{name}": tensor for name, tensor in white.collect().items()}, "noise.")
    with pytest.raises(ConfigError, match="this noise begins with an episode"):
        ou.draw(1)


# Of some lanes.


def lanes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("noise", [0.3, *KINDS.values()], ids=["white", *KINDS])
def test_a_lane_has_the_same_noise_alone_and_beside_others_that_come_begin_and_pause(noise: Any) -> None:
    beside, alone, found = make(noise), make(noise), []
    alone.begin(all_begin(1), lanes(3))
    for step, others in enumerate((lanes(3, 0), lanes(1, 3), lanes(3), lanes(90, 3, 0))):
        beside.begin((others != 3) | (step == 0), others)
        found.append(beside.draw(len(others), others)[torch.from_numpy(others == 3)])
        if step % 2:
            beside.draw(1, lanes(0))
    assert torch.equal(torch.cat(found), torch.cat([alone.draw(1, lanes(3)) for _ in range(4)]))


@pytest.mark.parametrize("noise", [0.3, *KINDS.values()], ids=["white", *KINDS])
def test_noise_of_some_lanes_has_the_deviation_and_the_memory_of_that_of_all(noise: Any) -> None:
    every, some, n = make(noise), make(noise), 20_000
    every.begin(all_begin(n))
    some.begin(all_begin(n), np.arange(n))
    expected = draw_many(every, n, 3)
    found = torch.stack([some.draw(n, np.arange(n)) for _ in range(3)]).numpy()
    assert found.std() == pytest.approx(expected.std(), rel=0.02)
    shared = [np.corrcoef(noise[0].ravel(), noise[2].ravel())[0, 1] for noise in (found, expected)]
    assert shared[0] == pytest.approx(shared[1], abs=0.02)


@pytest.mark.parametrize("noise", KINDS.values(), ids=KINDS)
def test_lanes_that_are_added_leave_the_noise_of_the_former_ones(noise: Any) -> None:
    grown, same = make(noise), make(noise)
    for source in (grown, same):
        source.begin(all_begin(3))
    grown.begin(all_begin(1), lanes(40))
    former = np.arange(3)
    assert torch.equal(grown.draw(3, former), same.draw(3, former))


@pytest.mark.parametrize("noise", KINDS.values(), ids=KINDS)
def test_restored_noise_of_some_lanes_goes_on_as_if_it_had_never_stopped(noise: Any) -> None:
    source, again = make(noise), make(noise)
    source.begin(all_begin(2), lanes(1, 4))
    source.draw(2, lanes(4, 1))
    again.load({f"noise.{name}": tensor.clone() for name, tensor in source.collect().items()}, "noise.")
    assert torch.equal(again.draw(2, lanes(4, 2)), source.draw(2, lanes(4, 2)))


# Agents that explore by it.

SMALL: dict[str, Any] = {"units": (8,), "batch_size": 8, "random_opts": 0}
AGENTS: dict[str, MakeAgent] = {
    "TD3, ou": partial(TD3, **SMALL, exploration_noise={"kind": "ou", "std": 0.3}),
    "TD3, laddered": partial(TD3, **SMALL, exploration_noise={"kind": "gaussian", "std": 0.1, "max_std": 0.9}),
    "SAC, pink": partial(SAC, **SMALL, exploration_noise={"kind": "pink", "std": 1.0}),
    "SAC, repeated": partial(SAC, **SMALL, exploration_noise={"kind": "repeated", "std": 1.0}),
    "SAC, state-dependent": partial(SAC, **SMALL, state_dependent_noise={"features": 4}),
}
PENDULUM = spec_of(gymnasium.make("Pendulum-v1"))
OBS = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)


def act(agent: Agent, rounds: Array) -> Array:
    return np.stack([agent.sample(obs) for obs in rounds])


@pytest.mark.parametrize("name", AGENTS)
def test_captured_agents_explore_as_eager_ones_do(name: str) -> None:
    found = []
    for update in ("captured", "eager"):
        agent = AGENTS[name](spec=PENDULUM, seed=0, update=update)
        agent.train()
        agent.begin(all_begin(2))
        first = act(agent, OBS[:3])
        agent.begin(np.array([True, False]))
        found.append(np.concatenate([first, act(agent, OBS[3:])]))
    np.testing.assert_array_equal(found[0], found[1])
    assert len(np.unique(found[0])) > 6, "there is noise"


@pytest.mark.parametrize("name", AGENTS)
def test_an_evaluation_between_two_steps_leaves_the_noise_of_the_episode_alone(name: str) -> None:
    found = []
    for evaluates in (True, False):
        agent = AGENTS[name](spec=PENDULUM, seed=0)
        agent.train()
        agent.begin(all_begin(2))
        act(agent, OBS[:2])
        if evaluates:
            agent.eval()
            agent.begin(all_begin(5))
            greedy = agent.sample(np.zeros((5, 3), np.float32))
            assert (greedy == greedy[0]).all(), "no noise in an evaluation"
            agent.train()
        found.append(act(agent, OBS[2:]))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("name", AGENTS)
def test_a_resumed_agent_goes_on_with_the_noise_of_its_episodes(name: str) -> None:
    agent, resumed = (AGENTS[name](spec=PENDULUM, seed=seed) for seed in range(2))
    agent.train()
    agent.begin(all_begin(2))
    act(agent, OBS[:3])
    resumed.load_training_state(copy.deepcopy(agent.training_state()))
    resumed.train()
    np.testing.assert_array_equal(act(resumed, OBS[3:]), act(agent, OBS[3:]))


@pytest.mark.parametrize("name", ["TD3, ou", "SAC, state-dependent"])
def test_these_agents_fit_the_system(name: str) -> None:
    check_agent(AGENTS[name], gymnasium.make("Pendulum-v1"), steps=150)


def test_sac_takes_one_kind_of_noise_only() -> None:
    both = {"exploration_noise": {"kind": "pink", "std": 1.0}, "state_dependent_noise": {}}
    with pytest.raises(ConfigError, match="give exploration_noise or state_dependent_noise, not both"):
        validate(SACConfig, both)


CONFIG = StateDependentNoise(features=8, initial_lstd=-0.5)


def make_actor(n_dims: int = 2) -> StateDependentActor:
    torch.manual_seed(0)
    return StateDependentActor(nn.Linear(3, 8), n_dims, CONFIG)


def test_the_policy_is_the_gaussian_that_the_noise_has_over_all_matrices() -> None:
    actor, n = make_actor(), 100_000
    obs = torch.tensor([[0.5, -1.0, 2.0]])
    weights = torch.randn(n, 16, generator=torch.Generator().manual_seed(1))
    mean, log_std = actor(obs).chunk(2, dim=1)
    features = actor.body(obs).tanh()[0]
    matrices = weights.view(n, 8, 2) * actor.lstd.exp()  # The slow formula: one product for each matrix.
    noise = torch.stack([features @ matrix for matrix in matrices[:2000]])
    assert mean.shape == log_std.shape == (1, 2)
    torch.testing.assert_close(noise.std(dim=0), log_std[0].exp(), rtol=0.06, atol=0)
    unit = actor.noise(obs.expand(n, 3), weights)
    torch.testing.assert_close(unit[:2000] * log_std.exp(), noise, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(unit.std(dim=0), torch.ones(2), rtol=0.02, atol=0)


def test_with_the_same_matrix_the_same_observation_has_the_same_noise_and_a_near_one_nearly() -> None:
    actor, weights = make_actor(), torch.randn(1, 16, generator=torch.Generator().manual_seed(1))
    here, again, near = (actor.noise(torch.tensor([[x, 0.2, -0.4]]), weights) for x in (0.3, 0.3, 0.301))
    assert torch.equal(here, again)
    torch.testing.assert_close(here, near, atol=0.02, rtol=0)


def test_the_matrix_changes_slowly() -> None:
    process = LaneNoise(CONFIG.process(), 16, torch.Generator().manual_seed(0), torch.device("cpu"))
    process.begin(np.ones(5000, np.bool_))
    drawn = torch.stack([process.draw(5000) for _ in range(41)]).numpy()
    correlations = [np.corrcoef(drawn[0].ravel(), drawn[k].ravel())[0, 1] for k in (1, 8, 40)]
    assert correlations == pytest.approx([7 / 8, (7 / 8) ** 8, (7 / 8) ** 40], abs=0.01)


def test_the_features_do_not_learn_from_the_standard_deviation() -> None:
    actor = make_actor()
    log_std = actor(torch.ones(4, 3)).chunk(2, dim=1)[1]
    body, lstd = list(actor.body.parameters()), actor.lstd
    *of_body, of_lstd = torch.autograd.grad(log_std.sum(), [*body, lstd], materialize_grads=True)
    assert of_lstd.abs().min() > 0
    assert all(not grad.any() for grad in of_body)
