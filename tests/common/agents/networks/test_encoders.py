from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from torch import nn

from common.agents.networks.discrete_actions import AllowedActions
from common.agents.networks.encoders import (
    EMBEDDING_DIM,
    Embedding,
    JointEncoder,
    build_encoder,
    build_mlp,
    build_network,
    is_own_network,
    select_leaves,
)
from common.agents.networks.layers import Mlp
from common.agents.networks.picture_networks import ImpalaCnn, NatureCnn
from common.errors import ConfigError, PluginError
from common.interfaces import EnvSpec
from common.plugins.part_config import PluginConfig
from common.spaces import leaves_of

ROBOT = Dict(
    {
        "camera": Box(0, 255, (60, 64, 3), np.uint8),
        "touch": Box(0, 255, (10, 10), np.uint8),
        "arm": Dict({"joints": Box(-1, 1, (2, 3), np.float32), "force": Box(-9, 9, (), np.float32)}),
        "grip": MultiBinary(2),
        "mode": Discrete(4, start=-1),
        "tools": MultiDiscrete([2, 3], start=[0, 5]),
    }
)
BATCH = 5


def observations(space: gymnasium.Space[Any] = ROBOT) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    found: dict[str, torch.Tensor] = {}
    for path, leaf in leaves_of(space).items():
        leaf.seed(int(rng.integers(1000)))
        found[path] = torch.from_numpy(np.stack([np.asarray(leaf.sample(), leaf.dtype) for _ in range(BATCH)]))
    return found


def test_the_features_of_all_leaves_stand_one_after_another_in_the_order_of_the_space() -> None:
    encoder, obs = JointEncoder(leaves_of(ROBOT), picture_dim=7), observations()
    features = encoder(obs)
    assert features.shape == (BATCH, encoder.n_features)
    sizes = {"camera": 7, "touch": 7, "arm/joints": 6, "arm/force": 1, "grip": 2}
    sizes |= {"mode": EMBEDDING_DIM, "tools": 2 * EMBEDDING_DIM}
    parts = dict(zip(obs, features.split([sizes[path] for path in obs], dim=1), strict=True))
    assert torch.equal(parts["arm/joints"], obs["arm/joints"].flatten(1))
    assert torch.equal(parts["arm/force"][:, 0], obs["arm/force"])
    assert torch.equal(parts["grip"], obs["grip"].float())
    table = next(module for module in encoder.modules() if isinstance(module, Embedding)).table.weight
    assert torch.equal(parts["mode"], table[obs["mode"] + 1])


def test_large_pictures_have_the_network_of_nature_and_small_ones_that_of_impala() -> None:
    encoder = JointEncoder(leaves_of(ROBOT), picture_dim=7)
    kinds = [type(module) for module in encoder.modules() if isinstance(module, NatureCnn | ImpalaCnn)]
    paths = [path for path in leaves_of(ROBOT) if path in ("camera", "touch")]
    assert dict(zip(paths, kinds, strict=True)) == {"camera": NatureCnn, "touch": ImpalaCnn}


def test_each_component_of_a_multi_discrete_leaf_has_rows_of_its_own_in_the_table() -> None:
    embedding = Embedding([2, 3], [0, 5])
    found = embedding(torch.tensor([[1, 5], [0, 7]]))
    table = embedding.table.weight
    assert torch.equal(found, torch.stack((torch.cat((table[1], table[2])), torch.cat((table[0], table[4])))))
    assert set(embedding.state_dict()) == {"table.weight"}


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        MultiDiscrete([2, 3]),
        MultiBinary(3),
        Box(-1, 1, (), np.float32),
        Tuple([Discrete(2), MultiBinary(2)]),
    ],
    ids=str,
)
def test_every_kind_of_space_has_a_network(space: gymnasium.Space[Any]) -> None:
    obs = observations(space)
    net = build_mlp(leaves_of(space), 6, (8,), 4)
    assert net(obs.get("", obs)).shape == (BATCH, 6)


def test_a_single_box_has_the_plain_network() -> None:
    space = Box(-1, 1, (2, 3), np.float32)
    net, (encoder, n_features) = build_mlp(leaves_of(space), 6, (8,), 4), build_encoder(None, leaves_of(space), 50)
    assert isinstance(net, Mlp)
    assert isinstance(encoder, nn.Flatten)
    assert n_features == 6


@pytest.mark.parametrize(("side", "kind"), [(84, NatureCnn), (10, ImpalaCnn)])
def test_a_single_picture_has_convolutions(side: int, kind: type[nn.Module]) -> None:
    space = Box(0, 255, (4, side, side), np.uint8)
    net, (encoder, n_features) = build_mlp(leaves_of(space), 6, (8,), 7), build_encoder(None, leaves_of(space), 7)
    picture = observations(space)[""]
    assert net(picture).shape == (BATCH, 6)
    assert encoder(picture).shape == (BATCH, n_features) == (BATCH, 7)
    assert all(kind in map(type, built.modules()) for built in (net, encoder))


def test_gradients_reach_the_encoder_of_every_leaf() -> None:
    net = build_mlp(leaves_of(ROBOT), 1, (8,), 4)
    net(observations()).sum().backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


def test_a_space_of_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected Box, Discrete"):
        select_leaves(Dict({"name": Text(5)}))


def test_the_features_are_the_observation_or_the_positive_outputs_of_a_network() -> None:
    obs = torch.randint(256, (5, 2, 3), dtype=torch.uint8)
    encoder, n_features = build_encoder(None, LEAVES, 4)
    assert torch.equal(encoder(obs), obs.flatten(1))
    assert n_features == 6
    encoder, n_features = build_encoder(own("tower"), LEAVES, 4)
    assert encoder(obs).shape == (5, n_features) == (5, 4)
    assert encoder(obs).min() >= 0
    encoder, n_features = build_encoder(None, leaves_of(ROBOT), 4)
    assert encoder(observations()).shape == (5, n_features)


# A choice of leaves.


def test_a_network_of_some_leaves_ignores_all_others() -> None:
    leaves = select_leaves(ROBOT, ["mode", "arm/joints"], "agent.params.actor_keys")
    assert list(leaves) == [path for path in leaves_of(ROBOT) if path in ("mode", "arm/joints")]
    net, obs = build_mlp(leaves, 3, (8,), 4), observations()
    assert torch.equal(net(obs), net({path: obs[path] for path in leaves}))


def test_the_path_of_no_leaf_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ConfigError, match=r"actor_keys: expected paths of leaves in Dict.*found 'joints' \(did you mean"
    ):
        select_leaves(ROBOT, ["joints"], "agent.params.actor_keys")
    with pytest.raises(ConfigError, match=r"actor_keys: expected paths"):
        select_leaves(Discrete(3), [""], "agent.params.actor_keys")
    with pytest.raises(ConfigError, match=r"actor_keys: expected paths of leaves in Dict.*; found none"):
        select_leaves(ROBOT, [], "agent.params.actor_keys")


# A user's own network.

SPACE = Box(0, 255, (2, 3), np.uint8)
LEAVES = leaves_of(SPACE)


def tower(in_shape: Sequence[int], out_dim: int, rate: float = 0.5) -> nn.Module:
    return nn.Sequential(Mlp(in_shape, out_dim, (4,)), nn.Dropout(rate))


def actions_first(in_shape: Sequence[int], out_dim: int) -> nn.Module:
    return nn.Sequential(Mlp(in_shape, out_dim, ()), nn.Unflatten(1, (out_dim, 1)))


class _Beside(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.net(obs)
        return outputs, outputs.mean(dim=1)


def value_beside(in_shape: Sequence[int], out_dim: int) -> nn.Module:
    return _Beside(Mlp(in_shape, out_dim, ()))


def no_network(in_shape: Sequence[int], out_dim: int) -> str:
    return f"{in_shape} {out_dim}"


class Joints(nn.Module):
    """Takes the leaf of joints, and asks for the spaces themselves."""

    def __init__(
        self, in_shape: Mapping[str, Sequence[int]], out_dim: int, observations: Mapping[str, gymnasium.Space[Any]]
    ) -> None:
        super().__init__()
        assert {path: space.shape for path, space in observations.items()} == in_shape
        self.layer, self.seen = nn.Linear(6, out_dim), set(in_shape)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        assert set(obs) == self.seen
        return self.layer(obs["arm/joints"].flatten(1))  # type: ignore[no-any-return]


def own(name: str) -> PluginConfig:
    return PluginConfig(target=f"{__name__}:{name}")


def test_a_users_network_is_built_for_its_spaces_and_computes_the_same_every_time() -> None:
    net = build_network(own("tower"), LEAVES, 4)
    obs = torch.randint(256, (5, 2, 3), dtype=torch.uint8)
    assert net(obs).shape == (5, 4)
    assert torch.equal(net(obs), net(obs))


def test_a_users_network_of_a_structured_space_is_given_its_leaves_and_no_others() -> None:
    leaves = select_leaves(ROBOT, ["arm/joints", "mode"])
    assert build_network(own("Joints"), leaves, 4)(observations()).shape == (BATCH, 4)


def test_only_networks_that_come_with_the_system_are_not_the_users_own() -> None:
    assert not is_own_network(PluginConfig(target="common.agents.networks:NatureCnn"))
    assert is_own_network(own("tower"))


@pytest.mark.parametrize(
    ("name", "found"), [("actions_first", r"torch\.float32 \[2, 4, 1\]"), ("value_beside", "tuple")]
)
def test_a_network_with_other_outputs_is_refused(name: str, found: str) -> None:
    message = rf"{name} must turn observations \[2, \*\[2, 3\]\] into floats \[2, 4\], found {found}$"
    with pytest.raises(PluginError, match=message):
        build_network(own(name), LEAVES, 4)


def test_something_that_is_no_network_is_refused() -> None:
    with pytest.raises(PluginError, match=r"agent\.params\.network: expected a torch\.nn\.Module, found str"):
        build_network(own("no_network"), LEAVES, 4)


def test_a_network_that_does_not_take_the_shapes_is_refused() -> None:
    with pytest.raises(PluginError, match="must take in_shape, out_dim, but does not"):
        build_network(PluginConfig(target="torch.nn:Linear"), LEAVES, 4)


def test_a_network_of_pictures_takes_the_only_leaf_beside_a_mask() -> None:
    spec = EnvSpec(Dict({"board": Box(0, 1, (6, 7, 2), np.int8), "action_mask": MultiBinary(7)}), Discrete(7))
    network = PluginConfig(target="common.agents.networks:ConvNet", params={"layers": [[4, 4, 1]]})
    net = build_network(network, AllowedActions(spec).leaves, 5)
    board = torch.randint(2, (BATCH, 6, 7, 2), dtype=torch.int8)
    alone = build_network(network, {"": Box(0, 1, (6, 7, 2), np.int8)}, 5)
    alone.load_state_dict(net.net.state_dict())  # type: ignore[union-attr]
    torch.testing.assert_close(net({"board": board, "action_mask": torch.ones(BATCH, 7)}), alone(board))


def test_a_network_of_pictures_is_refused_for_a_structured_space() -> None:
    with pytest.raises(ConfigError, match=r"NatureCnn: expected images \[C, H, W\], found observations"):
        build_network(PluginConfig(target="common.agents.networks:NatureCnn"), leaves_of(ROBOT), 4)
