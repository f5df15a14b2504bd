"""Turns the leaves of an observation into the features that a network computes with.

A user's network, the setting ``network``, gets the observations unchanged. Without it, a single Box that is no picture
is flattened; in every other space each leaf has a separate encoder, and ``JointEncoder`` joins their features:

    pictures                  convolutions (``networks.picture_networks`` says which leaves are pictures), or a
                              pretrained network and a trained layer (``common.agents.networks.frozen``)
    other Boxes, MultiBinary  their elements as floats
    Discrete, MultiDiscrete   an embedding of each component
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from common.agents.networks.frozen import FrozenEncoder, FrozenNetwork
from common.agents.networks.layers import Activation, Mlp, Observed
from common.agents.networks.picture_networks import ImpalaCnn, NatureCnn, is_picture, size_of
from common.data import Array
from common.errors import ConfigError, PluginError
from common.hints import nearest
from common.plugins.part_config import PluginConfig
from common.spaces import leaves_of

LeafSpaces = Mapping[str, gymnasium.Space[Any]]
"""The leaves that a network sees, by path; ``{"": space}`` for a space that is a leaf itself."""
EMBEDDING_DIM: Final = 16
"""Features of each component of a Discrete or MultiDiscrete leaf."""
NATURE_SIDE: Final = 60
"""Pictures with at least this many rows and columns have the network of Nature's DQN, smaller pictures IMPALA's: of 36
rows and columns, the first one leaves a single place, and agents hardly learn from it."""


def select_leaves(space: gymnasium.Space[Any], keys: Sequence[str] | None = None, where: str = "") -> LeafSpaces:
    """The leaves of an observation space that a network sees.

    Args:
        space: of the observations.
        keys: paths of the leaves, in any order; None takes all.
        where: the place of the keys in the configuration, for the message.

    Raises:
        ConfigError: ``keys`` is empty, a key is no path of a leaf in the space, or a leaf cannot be stored.
    """
    leaves = leaves_of(space)
    if keys is not None and not keys:
        raise ConfigError(f"{where}: expected paths of leaves in {space}, or null for all of them; found none")
    for key in keys or ():
        if key not in leaves or not key:
            raise ConfigError(f"{where}: expected paths of leaves in {space}, found {key!r}{nearest(key, leaves)}")
    return leaves if keys is None else {path: leaf for path, leaf in leaves.items() if path in keys}


class FloatEncoder(nn.Module):
    """The elements of a leaf as floats."""

    def forward(self, leaf: torch.Tensor) -> torch.Tensor:
        """``[B, *shape]`` to ``[B, F]``."""
        return leaf.reshape(leaf.shape[0], -1).float()


class Embedding(nn.Module):
    """A learnt vector for each value of each component of a Discrete or MultiDiscrete leaf.

    Args:
        sizes: the number of values of each of the k components.
        starts: the least value of each component.
    """

    starts: torch.Tensor

    def __init__(self, sizes: Sequence[int], starts: Sequence[int]) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(sizes), EMBEDDING_DIM)
        rows_before = np.cumsum([0, *sizes[:-1]])
        self.register_buffer("starts", torch.from_numpy(rows_before - np.array(starts)), persistent=False)

    def forward(self, leaf: torch.Tensor) -> torch.Tensor:
        """``[B, *shape]`` to ``[B, k * EMBEDDING_DIM]``."""
        return self.table(leaf.reshape(leaf.shape[0], -1).long() + self.starts).flatten(1)  # type: ignore[no-any-return]


def encode_leaf(space: gymnasium.Space[Any], picture_dim: int) -> tuple[nn.Module, int]:
    """Make the encoder of one leaf, ``[B, *shape]`` to ``[B, F]``; return it with F."""
    if isinstance(space, spaces.Discrete):
        return Embedding([int(space.n)], [int(space.start)]), EMBEDDING_DIM
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = ([int(n) for n in of.flat] for of in (space.nvec, space.start))
        return Embedding(sizes, starts), EMBEDDING_DIM * len(sizes)
    shape = space.shape or ()
    if not is_picture(space):
        return FloatEncoder(), math.prod(shape)
    kind = NatureCnn if min(size_of(shape)) >= NATURE_SIDE else ImpalaCnn
    return nn.Sequential(kind(shape, picture_dim), nn.ReLU(inplace=True)), picture_dim


class JointEncoder(nn.Module):
    """The features of all leaves, one leaf after another in the order of the space.

    Args:
        leaves: the leaves that it sees; observations may have more.
        picture_dim: features of each picture.
        frozen: pretrained networks by the paths of pictures; other pictures have convolutions that are trained.
    """

    def __init__(self, leaves: LeafSpaces, picture_dim: int, frozen: Mapping[str, FrozenNetwork] | None = None) -> None:
        super().__init__()
        self._paths = tuple(leaves)
        pretrained = frozen or {}
        encoders, sizes = zip(
            *(
                (FrozenEncoder(pretrained[path], picture_dim, path), picture_dim)
                if path in pretrained
                else encode_leaf(space, picture_dim)
                for path, space in leaves.items()
            ),
            strict=True,
        )
        self.leaves = nn.ModuleList(encoders)
        self.n_features = sum(sizes)

    def forward(self, obs: Observed) -> torch.Tensor:
        """Observations of B rows to ``[B, n_features]``."""
        parts = [obs[path] if isinstance(obs, dict) else obs for path in self._paths]
        return torch.cat([encode(part) for encode, part in zip(self.leaves, parts, strict=True)], dim=1)


class Selected(nn.Module):
    """A network for a structured space, which gets only the leaves that it was made for.

    Args:
        net: takes a dict with a tensor for each path, or the tensor of the only path.
        paths: of the leaves, or the only path.
    """

    def __init__(self, net: nn.Module, paths: str | tuple[str, ...]) -> None:
        super().__init__()
        self.net, self._paths = net, paths

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Observations of B rows to ``[B, out_dim]``."""
        paths = self._paths
        given = obs[paths] if isinstance(paths, str) else {path: obs[path] for path in paths}
        return self.net(given)  # type: ignore[no-any-return]


def build_encoder(
    network: PluginConfig | None,
    leaves: LeafSpaces,
    feature_dim: int,
    frozen: Mapping[str, FrozenNetwork] | None = None,
) -> tuple[nn.Module, int]:
    """Make the encoder that turns observations of B rows into features ``[B, F]``; return it with F.

    The features are the positive parts of the network's ``feature_dim`` outputs. Without a network, they are the
    elements of a single Box that is no picture, or for any other space the outputs of ``JointEncoder``, with
    ``feature_dim`` features for each picture.

    Raises:
        PluginError, ConfigError: see ``build_network``.
    """
    if network is not None:
        return nn.Sequential(build_network(network, leaves, feature_dim), nn.ReLU()), feature_dim
    if _is_vector(leaves):
        return nn.Flatten(), math.prod(leaves[""].shape or ())
    encoder = JointEncoder(leaves, feature_dim, frozen)
    return encoder, encoder.n_features


def build_mlp(
    leaves: LeafSpaces, out_dim: int, units: Sequence[int], picture_dim: int, activation: Activation = "relu"
) -> nn.Module:
    """Make a network of hidden layers, over the ``JointEncoder`` unless observations are a vector."""
    if _is_vector(leaves):
        return Mlp(leaves[""].shape or (), out_dim, units, activation=activation)
    encoder = JointEncoder(leaves, picture_dim)
    return nn.Sequential(encoder, Mlp((encoder.n_features,), out_dim, units, activation=activation))


def _is_vector(leaves: LeafSpaces) -> bool:
    """Whether the observations are a single Box that can be flattened: neither scalars nor pictures."""
    box = leaves.get("")
    return isinstance(box, spaces.Box) and box.shape != () and not is_picture(box)


def is_own_network(network: PluginConfig) -> bool:
    """Whether a network is a user's own and does not come with the system."""
    return not network.target.startswith("common.agents.networks")


def build_network(network: PluginConfig, leaves: LeafSpaces, out_dim: int) -> nn.Module:
    """Build a user's network by ``target(in_shape=…, out_dim=…, **params)`` and check its outputs.

    It turns observations ``[B, *in_shape]``, in the dtype of their space, into floats ``[B, out_dim]``. For a Dict or
    Tuple space ``in_shape`` is a dict from path to shape, and observations are a dict from path to tensor. A network
    with a parameter ``observations`` also gets the spaces themselves, in the same form. The networks that come with the
    system get the only leaf of a Dict or Tuple as if it were the whole observation.

    It is returned in torch's eval mode, in which it acts and serves as a target; agents switch it to train mode while
    they learn.

    Raises:
        PluginError: the target cannot be loaded, does not take these arguments, or gives other outputs.
        ConfigError: a parameter is unknown or missing.
    """
    where, only = "agent.params.network", next(iter(leaves))
    is_leaf = only == "" or (len(leaves) == 1 and not is_own_network(network))
    network.check(where, frozenset({"in_shape", "out_dim"}), optional=frozenset({"observations"}))
    shapes = {path: space.shape or () for path, space in leaves.items()}
    built = network.build(
        in_shape=shapes[only] if is_leaf else shapes,
        out_dim=out_dim,
        optional={"observations": leaves[only] if is_leaf else dict(leaves)},
    )
    if not isinstance(built, nn.Module):
        raise PluginError(f"{where}: expected a torch.nn.Module, found {type(built).__name__}")
    blank = {path: torch.from_numpy(_blank(space)) for path, space in leaves.items()}
    with torch.no_grad():
        outputs = built.eval()(blank[only] if is_leaf else blank)
    is_tensor = isinstance(outputs, torch.Tensor)
    if not (is_tensor and tuple(outputs.shape) == (2, out_dim) and outputs.is_floating_point()):
        form = f"[2, *{list(shapes[only])}]" if is_leaf else f"of 2 rows {list(shapes)}"
        raise PluginError(
            f"{where}: {network.target} must turn observations {form} into floats "
            f"[2, {out_dim}], found {f'{outputs.dtype} {list(outputs.shape)}' if is_tensor else type(outputs).__name__}"
        )
    return built if only == "" else Selected(built, only if is_leaf else tuple(leaves))


def _blank(space: gymnasium.Space[Any]) -> Array:
    """Two rows of zeros, or of the least values of a discrete leaf."""
    start = getattr(space, "start", 0)
    blank: Array = np.zeros((2, *(space.shape or ())), space.dtype) + np.asarray(start, space.dtype)
    return blank
