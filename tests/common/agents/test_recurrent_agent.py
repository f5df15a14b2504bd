"""Agents with a memory record it, and refuse batches that are not of sequences before anything is learnt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.r2d2 import R2D2
from common.agents.recurrent_agent import (
    LaneMemory,
    Memory,
    MemoryConfig,
    MemoryKind,
    RecurrentEncoder,
    RecurrentNetwork,
)
from common.agents.recurrent_ppo import RecurrentPPO
from common.agents.recurrent_sac import RecurrentCritics, RecurrentSAC
from common.config.run_config import load_config
from common.config.trainer_config import Precision
from common.data import Array
from common.envs.memory_tasks import Cue
from common.errors import ConfigError, PluginError
from common.interfaces import Agent
from common.lanes.building import spec_of
from common.parts import row_schema
from crossborder.testing import ItemMemory, RowMemory, play, rows_of
from crossborder.testing.row_memory import transitions
from learner.loop.in_turns import train_in_turns
from learner.loop.learner_parts import computing_in
from learner.storage.checkpoint import load_params
from learner.views.sequences import Sequences
from tests.common.agents.parts import assert_same_state
from tests.common.agents.sequences import Prioritized, played_by
from tests.common.agents.test_network_agent import through_a_file
from tests.conftest import ROOT

SMALL: dict[str, Any] = {"units": (8,), "batch_size": 4, "memory": {"width": 3}}
ALL: list[tuple[type[R2D2 | RecurrentSAC | RecurrentPPO], str]] = [
    (R2D2, "CartPole-v1"),
    (RecurrentSAC, "Pendulum-v1"),
    (RecurrentPPO, "CartPole-v1"),
    (RecurrentPPO, "Pendulum-v1"),
]
KINDS: list[tuple[type[R2D2 | RecurrentSAC], str]] = [(R2D2, "CartPole-v1"), (RecurrentSAC, "Pendulum-v1")]


def batch_of(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    columns = {"mask": torch.ones(2, 3).bool(), "warm": torch.ones(2, 3).bool(), "first": torch.zeros(2, 4).bool()}
    return {**columns, "state": torch.zeros(2, 4), **changed}


@pytest.mark.parametrize(("kind", "env_id"), KINDS)
def test_transitions_are_refused_before_anything_is_learnt(kind: type[R2D2 | RecurrentSAC], env_id: str) -> None:
    env = gymnasium.make(env_id)
    agent = kind(spec=spec_of(env), seed=0, **SMALL)
    before = {name: value.clone() for name, value in agent.save_params().items()}
    expected = rf"replay.view: {kind.__name__} .* learns from sequences, but a batch has action.*Sequences"
    with pytest.raises(ConfigError, match=expected):
        agent.opt(ItemMemory(transitions(env, 20)))
    assert all(torch.equal(value, before[name]) for name, value in agent.save_params().items())


@pytest.mark.parametrize(("kind", "env_id"), KINDS)
def test_sequences_without_a_recorded_state_are_refused(kind: type[R2D2 | RecurrentSAC], env_id: str) -> None:
    env = gymnasium.make(env_id)
    schema = row_schema(spec_of(env))
    memory = RowMemory(schema, rows_of(schema, play(env, 50)), Sequences(schema, length=5))
    with pytest.raises(ConfigError, match=rf"{kind.__name__} begins sequences in the state .* rows have no 'state'"):
        kind(spec=spec_of(env), seed=0, **SMALL).opt(memory)


def test_sequences_across_episodes_are_refused() -> None:
    first = torch.zeros(2, 4).bool()
    first[:, 0] = True
    agent = R2D2(spec_of(gymnasium.make("CartPole-v1")), seed=0, **SMALL)
    agent._require_sequences(batch_of(first=first))
    first[1, 2] = True
    with pytest.raises(ConfigError, match=r"replay.view.params.across: R2D2 learns from sequences of one episode"):
        agent._require_sequences(batch_of(first=first))


@pytest.mark.parametrize(("kind", "env_id"), ALL)
def test_the_recorded_state_is_the_one_before_the_action_and_ends_with_the_action_before(
    kind: type[R2D2 | RecurrentSAC | RecurrentPPO], env_id: str
) -> None:
    env = gymnasium.make(env_id)
    agent = kind(spec=spec_of(env), seed=0, epsilon=1.0, **SMALL)
    agent.train()
    env.observation_space.seed(0)
    obs = np.stack([env.observation_space.sample() for _ in range(4)])
    agent.begin(np.ones(4, np.bool_))
    action = agent.sample(obs)
    assert not agent.extras()["state"].any()
    agent.sample(obs)
    state = agent.extras()["state"]
    assert state[:, :6].any()
    expected = action / 2  # Pendulum's actions are in [-2, 2].
    if env_id == "CartPole-v1":
        expected = action[:, None] + 1 if kind is R2D2 else np.eye(2)[action]
    np.testing.assert_allclose(state[:, 6:], expected, rtol=1e-6)
    agent.begin(np.array([True, False, False, False]))
    agent.sample(obs)
    assert agent.extras()["state"].any(axis=1).tolist() == [False, True, True, True]


@pytest.mark.parametrize(("kind", "env_id"), ALL)
def test_a_policy_that_remembers_is_not_offered_for_export(
    kind: type[R2D2 | RecurrentSAC | RecurrentPPO], env_id: str
) -> None:
    with pytest.raises(PluginError, match=rf"{kind.__name__} offers no policy"):
        kind(spec=spec_of(gymnasium.make(env_id)), seed=0, **SMALL).policy()


# Captured updates, and resumed agents.


def learn(make: Callable[..., R2D2 | RecurrentSAC], env_id: str, update: str, precision: Precision) -> dict[str, Any]:
    """What six opt steps from sequences with weights leave behind."""
    env = gymnasium.make(env_id)
    agent = make(spec=spec_of(env), seed=0, epsilon=1.0, update=update)
    drawn = played_by(agent, spec_of(env), env, 80, length=4, burn_in=1).batch(6)
    memory = Prioritized(drawn, np.linspace(0.1, 1, 6, dtype=np.float32))
    computing, records = computing_in(precision, "cpu"), []
    for _ in range(6):
        with computing:
            record = agent.opt(memory)
        assert record is not None
        records.append({name: float(value) for name, value in record.items()})
    tensors = {name: tensor.tolist() for name, tensor in agent.training_state().tensors.items()}
    return {"captured": agent.is_captured, "records": records, "told": np.stack(memory.told).tolist(), **tensors}


@pytest.mark.parametrize(
    ("kind", "env_id", "memory", "precision"),
    [
        *((R2D2, "CartPole-v1", "lstm", "float32"), (R2D2, "CartPole-v1", "lstm", "bfloat16")),
        *((RecurrentSAC, "Pendulum-v1", "gru", "float32"), (RecurrentSAC, "Pendulum-v1", "lstm", "bfloat16")),
    ],
)
def test_a_captured_update_is_the_eager_one_bit_for_bit(
    kind: type[R2D2 | RecurrentSAC], env_id: str, memory: str, precision: Precision, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(kind, memory={"kind": memory, "width": 3}, units=(8,), batch_size=4)
    found = [learn(make, env_id, update, precision) for update in ("captured", "eager")]
    assert [each.pop("captured") for each in found] == [True, False]
    assert found[0] == found[1]
    assert not caplog.records, "it was captured"


@pytest.mark.parametrize(("kind", "env_id"), KINDS)
def test_a_resumed_agent_goes_on_in_the_middle_of_an_episode_as_if_it_had_never_been_interrupted(
    kind: type[R2D2 | RecurrentSAC], env_id: str, tmp_path: Path
) -> None:
    env = gymnasium.make(env_id)
    uninterrupted, resumed = (kind(spec=spec_of(env), seed=seed, epsilon=0.5, **SMALL) for seed in (1, 2))
    for agent in (uninterrupted, resumed):
        agent.train()
    memory = played_by(uninterrupted, spec_of(env), env, 60, length=6, burn_in=2)
    items = memory.batch(16)
    obs = items["obs"][:3, 0]
    uninterrupted.begin(np.ones(3, np.bool_))
    uninterrupted.sample(obs)
    for _ in range(5):
        uninterrupted.opt(ItemMemory(items))
    resumed.load_training_state(through_a_file(uninterrupted.training_state(), tmp_path / "state"))
    for _ in range(3):
        for agent in (uninterrupted, resumed):
            agent.opt(ItemMemory(items))
            agent.begin(np.array([False, True, False]))
        np.testing.assert_array_equal(uninterrupted.sample(obs), resumed.sample(obs))
        np.testing.assert_array_equal(uninterrupted.extras()["state"], resumed.extras()["state"])
    assert_same_state(uninterrupted, resumed)


# What they learn.


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_r2d2_remembers_a_cue(kind: str) -> None:
    env = Cue(4)
    agent = R2D2(
        spec_of(env), seed=0, memory={"kind": kind, "width": 16}, units=(16,), lr=5e-3, soft_update_interval=20
    )
    memory = played_by(agent, spec_of(env), env, 500, length=5, period=5)
    for _ in range(150):
        agent.opt(memory)
    agent.eval()
    assert score(agent, env) == 1


def score(agent: Agent, env: Any) -> float:
    """The least reward of ten episodes."""
    rewards = []
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        agent.begin(np.ones(1, np.bool_))
        ended = False
        while not ended:
            obs, reward, ended, *_ = env.step(agent.sample(obs[None])[0])
            agent.begin(np.zeros(1, np.bool_))
        rewards.append(reward)
    return float(min(rewards))


def test_recurrent_sac_remembers_a_cue() -> None:
    env = ContinuousCue(Cue(2))
    agent = RecurrentSAC(spec_of(env), seed=0, memory={"width": 16}, units=(16,), lr=1e-2, tau=0.05, ent_coef=0.05)
    memory = played_by(agent, spec_of(env), env, 500, length=3, period=3)
    for _ in range(200):
        agent.opt(memory)
    agent.eval()
    assert score(agent, env) == 1


class ContinuousCue(gymnasium.ActionWrapper[Any, Any, Any]):
    """The answer is the sign of the action."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def action(self, action: Any) -> Any:
        return np.int64(action[0] > 0)


# A whole run.


def test_a_run_in_turns_that_was_resumed_in_the_middle_of_episodes_learns_the_same_to_the_last_bit(
    tmp_path: Path,
) -> None:
    def train(name: str, max_opts: int) -> dict[str, Any]:
        settings = {
            "agent.params.memory.width": 8,
            "agent.params.units": [8],
            "envs_per_actor": 3,
            "replay.prioritized": "{beta_0: 1}",  # Otherwise it rises with max_opts.
            "trainer.warmup_period": 100,
            "trainer.max_opts": max_opts,
            "trainer.eval_interval": 20,
            "evaluator.episodes": 2,
            "run_dir": tmp_path / name,
        }
        overrides = [f"{key}={value}" for key, value in settings.items()]
        result = train_in_turns(load_config(ROOT / "configs/masked_cartpole.yaml", overrides), resume=True)
        return {key: value.tolist() for key, value in load_params(result.run_dir / "final")[0].items()}

    alone = train("alone", 60)
    for max_opts in (23, 41, 60):
        resumed = train("resumed", max_opts)
    assert resumed == alone


MEMORIES: list[MemoryKind] = ["lstm", "gru"]


def encoder(kind: MemoryKind = "lstm") -> RecurrentEncoder:
    torch.manual_seed(0)
    return RecurrentEncoder(nn.Flatten(), 6, 2, MemoryConfig(kind=kind, width=4))


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_sequence_at_once_is_the_same_as_its_steps_one_by_one(kind: MemoryKind) -> None:
    torch.manual_seed(0)
    config = MemoryConfig(kind=kind, width=4)
    memory = Memory(3, config)
    inputs, state = torch.randn(2, 5, 3), torch.randn(2, config.state_dim)
    outputs, after = memory(inputs, state)
    assert (outputs.shape, after.shape) == ((2, 5, 4), (2, config.state_dim))
    for t in range(5):
        step, state = memory(inputs[:, t : t + 1], state)
        torch.testing.assert_close(step[:, 0], outputs[:, t])
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize("kind", MEMORIES)
def test_where_an_episode_begins_the_memory_goes_on_from_zeros(kind: MemoryKind) -> None:
    torch.manual_seed(0)
    config = MemoryConfig(kind=kind, width=4)
    memory = Memory(3, config)
    inputs, state = torch.randn(2, 5, 3), torch.randn(2, config.state_dim)
    begins = torch.zeros(2, 5, dtype=torch.bool)
    begins[0, 2] = begins[1, 0] = True
    states = memory.unroll(inputs, state, begins)
    assert states.shape == (2, 5, config.state_dim)
    blank = torch.zeros(1, config.state_dim)
    for lane, steps, before in ((0, slice(0, 2), state[:1]), (0, slice(2, 5), blank), (1, slice(0, 5), blank)):
        outputs, after = memory(inputs[lane : lane + 1, steps], before)
        torch.testing.assert_close(states[lane : lane + 1, steps, :4], outputs)
        torch.testing.assert_close(states[lane, steps.stop - 1], after[0])


def test_an_lstm_computes_by_its_equations() -> None:
    torch.manual_seed(0)
    memory = Memory(3, MemoryConfig(width=4))
    weight, weight_of_hidden, bias, bias_of_hidden = memory.net.parameters()
    x, state = torch.randn(1, 3), torch.randn(1, 8)
    hidden, cell = state.chunk(2, dim=1)
    gates = x @ weight.T + bias + hidden @ weight_of_hidden.T + bias_of_hidden
    admit, forget, new, show = gates.chunk(4, dim=1)
    cell = forget.sigmoid() * cell + admit.sigmoid() * new.tanh()
    hidden = show.sigmoid() * cell.tanh()
    outputs, after = memory(x[:, None], state)
    torch.testing.assert_close(outputs[:, 0], hidden)
    torch.testing.assert_close(after, torch.cat((hidden, cell), dim=1))


def test_a_memory_computes_in_float32_under_autocast() -> None:
    memory = Memory(3, MemoryConfig(width=4))
    inputs, state = torch.randn(2, 5, 3), torch.zeros(2, 8)
    begins = torch.zeros(2, 5, dtype=torch.bool)
    expected = (*memory(inputs, state), memory.unroll(inputs, state, begins))
    with torch.autocast("cpu", torch.bfloat16):
        found = (*memory(inputs, state), memory.unroll(inputs, state, begins))
    assert [each.dtype for each in found] == [torch.float32] * 3
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", MEMORIES)
def test_features_depend_on_earlier_observations_and_actions_and_on_no_later_ones(kind: MemoryKind) -> None:
    net = encoder(kind)
    obs, actions = torch.randn(1, 4, 2, 3), torch.randn(1, 4, 2)
    state = torch.zeros(1, net.memory.state_dim)
    features = net(obs, actions, state)[0]
    changed, other = obs.clone(), actions.clone()
    changed[:, 2] += 1
    other[:, 1] += 1
    by_obs, by_action = net(changed, actions, state)[0], net(obs, other, state)[0]
    assert torch.equal(by_obs[:, :2], features[:, :2])
    assert not torch.isclose(by_obs[:, 2:], features[:, 2:]).all(dim=2).any()
    assert torch.equal(by_action[:, :1], features[:, :1])
    assert not torch.isclose(by_action[:, 1:], features[:, 1:]).all(dim=2).any()


def test_structured_observations_are_encoded_step_by_step() -> None:
    class Sum(nn.Module):
        def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
            assert [leaf.shape[0] for leaf in obs.values()] == [6, 6]
            return obs["a"] + obs["b"]

    net = RecurrentEncoder(Sum(), 3, 1, MemoryConfig(width=4))
    features, _ = net({"a": torch.ones(2, 3, 3), "b": torch.ones(2, 3, 3)}, torch.zeros(2, 3, 1), torch.zeros(2, 8))
    assert features.shape == (2, 3, 4)


def test_a_network_has_a_head_over_the_features_of_each_step() -> None:
    below, head = encoder(), nn.Linear(4, 5)
    obs, actions, state = torch.randn(2, 3, 6), torch.randn(2, 3, 2), torch.randn(2, 8)
    outputs, after = RecurrentNetwork(below, head)(obs, actions, state)
    features, expected = below(obs, actions, state)
    torch.testing.assert_close(outputs, head(features))
    assert torch.equal(after, expected)


def test_critics_share_a_memory_that_begins_with_zeros() -> None:
    below = encoder()
    critics = RecurrentCritics(below, n=3, action_dim=2, units=(8,))
    obs, before, actions = torch.randn(2, 5, 6), torch.randn(2, 5, 2), torch.randn(2, 5, 2)
    features = critics.features(obs, before)
    assert torch.equal(features, below(obs, before, torch.zeros(2, 8))[0])
    values = critics(features, actions)
    assert values.shape == (3, 2, 5)
    torch.testing.assert_close(values[:, :, 3], critics.critics(features[:, 3], actions[:, 3]))


@pytest.mark.parametrize("kind", MEMORIES)
def test_an_untrained_memory_with_a_span_forgets_over_that_many_steps_at_most(kind: MemoryKind) -> None:
    torch.manual_seed(0)
    config = MemoryConfig(kind=kind, width=500, span=50)
    memory = Memory(1, config)
    with torch.no_grad():
        for name, parameter in memory.net.named_parameters():
            if name.startswith("weight"):
                parameter.zero_()
            elif kind == "gru":
                parameter[-500:] = 0  # No new values.
            else:
                parameter[1000:1500] = 0
        _, after = memory(torch.zeros(1, 1, 1), torch.ones(1, config.state_dim))
    kept = after[0, -500:]  # The cell of an LSTM, the output of a GRU.
    assert kept.min() >= 0.5 - 1e-5
    assert kept.max() <= 1 - 1 / 50 + 1e-5
    assert 1 / (1 - kept.mean()) > 10


# The memory of each lane.


def where(*begins: int) -> Array:
    return np.array(begins, np.bool_)


def remembering(*values: float) -> LaneMemory:
    memory = LaneMemory(2)
    memory.begin(np.ones(len(values), np.bool_), is_train=True)
    memory.write(torch.tensor(values)[:, None].repeat(1, 2), is_train=True)
    return memory


def test_every_lane_begins_with_zeros() -> None:
    memory = LaneMemory(2, 3)
    memory.begin(where(1, 1), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(2, 2, 3))


def test_a_lane_that_begins_forgets_and_no_other_one_does() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    before = memory.read(is_train=True)
    memory.begin(where(0, 1, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 3.0]
    assert before[:, 0].tolist() == [1.0, 2.0, 3.0], "states that were given out stay as they were"


def test_with_another_number_of_lanes_all_begin() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(where(0, 0, 0), is_train=True)
    assert torch.equal(memory.read(is_train=True), torch.zeros(3, 2))


def test_an_evaluation_has_states_of_its_own() -> None:
    memory = remembering(1.0, 2.0)
    memory.begin(where(1), is_train=False)
    assert memory.read(is_train=False).shape == (1, 2)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("began", [True, False])
def test_the_states_of_train_mode_survive_a_restart(began: bool) -> None:
    memory = remembering(1.0, 2.0) if began else LaneMemory(2)
    tensors = {f"memory.{key}": value for key, value in memory.collect().items()}
    resumed = remembering(7.0)
    resumed.load(tensors, "memory.")
    resumed.begin(where(0, 0), is_train=True)
    assert resumed.read(is_train=True)[:, 0].tolist() == ([1.0, 2.0] if began else [0.0, 0.0])


# Of some lanes.


def numbers(*lanes: int) -> Array:
    return np.array(lanes, np.int64)


def test_some_lanes_are_read_and_written_by_their_numbers_and_others_stay() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    assert memory.read(numbers(2, 0), is_train=True)[:, 0].tolist() == [3.0, 1.0]
    memory.write(torch.tensor([[7.0, 7.0], [8.0, 8.0]]), numbers(2, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [8.0, 2.0, 7.0]


def test_only_those_of_some_lanes_forget_whose_episodes_begin() -> None:
    memory = remembering(1.0, 2.0, 3.0)
    memory.begin(where(1, 0), numbers(2, 0), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 2.0, 0.0]


def test_a_lane_with_a_new_number_is_added_with_zeros() -> None:
    memory = LaneMemory(2)
    memory.begin(where(1), numbers(5), is_train=True)
    memory.write(torch.ones(1, 2), numbers(5), is_train=True)
    memory.begin(where(1, 0), numbers(70, 5), is_train=True)
    assert memory.read(numbers(5, 70, 0), is_train=True)[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_states_that_were_written_in_inference_mode_can_be_cleared_outside() -> None:
    memory = LaneMemory(2)
    with torch.inference_mode():
        memory.write(torch.ones(3, 2), is_train=True)
    memory.begin(where(1), numbers(1), is_train=True)
    assert memory.read(is_train=True)[:, 0].tolist() == [1.0, 0.0, 1.0]
