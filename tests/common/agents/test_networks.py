from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from common.agents.networks import Critics, EntropyCoef, Mlp, build_network
from common.config import PluginConfig
from common.errors import PluginError


@pytest.mark.parametrize("in_shape", [(3,), (2, 4), (1, 2, 3)])
@pytest.mark.parametrize("units", [(), (8,), (8, 5)])
def test_each_observation_of_any_shape_gives_one_row_of_outputs(
    in_shape: tuple[int, ...], units: tuple[int, ...]
) -> None:
    outputs = Mlp(in_shape, 6, units)(torch.zeros(7, *in_shape))
    assert outputs.shape == (7, 6)


def test_layers_are_as_wide_as_asked_for() -> None:
    linear = [layer for layer in Mlp((2, 3), 4, (8, 5)).modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(6, 8), (8, 5), (5, 4)]


def test_it_computes_what_the_slow_formula_does() -> None:
    net = Mlp((3,), 2, (4,))
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in net.parameters())
    slow = np.maximum(obs @ w1.T + b1, 0) @ w2.T + b2
    np.testing.assert_allclose(net(torch.from_numpy(obs)).detach().numpy(), slow, rtol=1e-5, atol=1e-6)


def test_observations_of_bytes_are_taken_as_numbers() -> None:
    net = Mlp((3,), 2, (4,))
    obs = torch.tensor([[0, 7, 255]], dtype=torch.uint8)
    assert torch.equal(net(obs), net(torch.tensor([[0.0, 7.0, 255.0]])))


def test_the_observations_are_left_as_they_were() -> None:
    obs = torch.full((2, 3), -1.0)
    Mlp((3,), 2, (4,))(obs)
    assert torch.equal(obs, torch.full((2, 3), -1.0))


# A user's own network.

SPACE = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)


def tower(in_shape: Sequence[int], out_dim: int, rate: float = 0.5) -> nn.Module:
    return nn.Sequential(Mlp(in_shape, out_dim, (4,)), nn.Dropout(rate))


def actions_first(in_shape: Sequence[int], out_dim: int) -> nn.Module:
    return nn.Sequential(Mlp(in_shape, out_dim, ()), nn.Unflatten(1, (out_dim, 1)))


def no_network(in_shape: Sequence[int], out_dim: int) -> str:
    return f"{in_shape} {out_dim}"


def own(name: str) -> PluginConfig:
    return PluginConfig(target=f"{__name__}:{name}")


def test_a_users_network_is_built_for_its_spaces_and_computes_the_same_every_time() -> None:
    net = build_network(own("tower"), SPACE, 4)
    obs = torch.randint(256, (5, 2, 3), dtype=torch.uint8)
    assert net(obs).shape == (5, 4)
    assert torch.equal(net(obs), net(obs))


def test_a_network_with_other_outputs_is_refused() -> None:
    with pytest.raises(
        PluginError, match=r"actions_first must turn observations \[2, \*\[2, 3\]\] into floats \[2, 4\]"
    ):
        build_network(own("actions_first"), SPACE, 4)


def test_something_that_is_no_network_is_refused() -> None:
    with pytest.raises(PluginError, match=r"agent\.params\.network: expected a torch\.nn\.Module, found str"):
        build_network(own("no_network"), SPACE, 4)


def test_a_network_that_does_not_take_the_shapes_is_refused() -> None:
    with pytest.raises(PluginError, match="must take in_shape, out_dim, but does not"):
        build_network(PluginConfig(target="torch.nn:Linear"), SPACE, 4)


# Critics.


@pytest.mark.parametrize("obs_shape", [(3,), (2, 4)])
def test_each_critic_is_a_network_of_its_own_over_observation_and_action(obs_shape: tuple[int, ...]) -> None:
    critics = Critics(3, obs_shape, 2, (8,))
    obs, action = torch.rand(5, *obs_shape), torch.rand(5, 2)
    found = critics(obs, action)
    assert found.shape == (3, 5)
    for net, values in zip(critics.nets, found, strict=True):
        torch.testing.assert_close(values, net(torch.cat((obs.flatten(1), action), 1))[:, 0])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found, critics(obs, action + 1))
    assert not torch.equal(found, critics(obs + 1, action))


@pytest.mark.parametrize("learned", [True, False])
def test_the_entropy_coefficient_begins_at_its_first_value_and_is_learned_if_it_may(learned: bool) -> None:
    coefficient = EntropyCoef(0.2, learned=learned)
    assert coefficient().item() == pytest.approx(0.2)
    assert coefficient().requires_grad == learned
    assert set(coefficient.state_dict()) == {"log"}
