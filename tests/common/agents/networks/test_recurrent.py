"""Memories of networks, against their steps taken one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from common.agents.networks.recurrent import (
    Memory,
    MemoryConfig,
    MemoryKind,
    RecurrentCritics,
    RecurrentEncoder,
    RecurrentNetwork,
)

KINDS: list[MemoryKind] = ["lstm", "gru"]


def encoder(kind: MemoryKind = "lstm") -> RecurrentEncoder:
    torch.manual_seed(0)
    return RecurrentEncoder(nn.Flatten(), 6, 2, MemoryConfig(kind=kind, width=4))


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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
