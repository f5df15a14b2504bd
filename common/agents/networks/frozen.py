"""Encoders with pretrained weights that are not trained. Learner and actors load the weights, and never send them.

A learner and its actors build the same network and read the same file of weights. Only the SHA-256 of the weights is
part of the model and of checkpoints. Loading a model that was trained with other weights is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space
from pydantic import Field
from torch import nn

from common.agents.networks.layers import Linear
from common.agents.networks.picture_networks import is_picture
from common.errors import CheckpointError, ConfigError, PluginError
from common.hints import nearest
from common.home import expand_path
from common.plugins.part_config import PluginConfig
from common.wire.tensor_file import read_tensors

PLACE = "agent.params.frozen_encoders"


class FrozenEncoderConfig(PluginConfig):
    """A network with pretrained weights, which is called with in_shape and out_dim if it takes them, and with params.

    It turns pictures ``[B, *in_shape]`` of bytes into floats ``[B, …]``; ``out_dim`` is ``feature_dim``.
    """

    weights: str | None = Field(
        None,
        description="The safetensors file of the network's weights: the same path on the learner's host and on each "
        "actor's host. null: the target loads its weights itself.",
    )


class FrozenNetwork:
    """A network that is not trained, sent, saved or copied.

    It is no ``nn.Module``, so its weights are not among the weights of the modules that hold it.

    Args:
        net: turns pictures ``[B, *shape]`` into floats ``[B, …]``.
        shape: of one picture.
        origin: where it comes from, for messages.

    Raises:
        PluginError: ``net`` does not take such pictures.
    """

    def __init__(self, net: nn.Module, shape: tuple[int, ...], origin: str) -> None:
        self.net, self.origin = net.eval().requires_grad_(False), origin
        expected = f"{origin} must turn pictures [2, {', '.join(map(str, shape))}] of bytes into floats [2, …]"
        try:
            features = self(torch.zeros(2, *shape, dtype=torch.uint8))
        except (AttributeError, RuntimeError, TypeError, ValueError, LookupError) as error:
            raise PluginError(f"{expected}, found {type(error).__name__}: {error}") from error
        if features.dim() != 2 or len(features) != 2 or not features.is_floating_point():
            raise PluginError(f"{expected}, found {features.dtype} {list(features.shape)}")
        self.n_features = features.shape[1]
        self.sha256 = _digest(net.state_dict())
        """SHA-256 of the weights, uint8 ``[32]``."""

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    @torch.no_grad()
    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """Pictures ``[B, *shape]`` to features ``[B, n_features]``."""
        return self.net(pictures).flatten(1)  # type: ignore[no-any-return]


class FrozenEncoder(nn.Module):
    """A frozen network's features, and a layer that is trained on them: linear, LayerNorm, tanh, as in DrQ.

    Its state has the SHA-256 of the frozen weights instead of the weights.

    Args:
        frozen: the network, which several encoders may share.
        out_dim: features of the trained layer.
        path: of the picture in observations, for messages.
    """

    sha256: torch.Tensor

    def __init__(self, frozen: FrozenNetwork, out_dim: int, path: str) -> None:
        super().__init__()
        self._frozen, self._path = frozen, path
        self.register_buffer("sha256", frozen.sha256.clone())
        self.head = nn.Sequential(Linear(frozen.n_features, out_dim), nn.LayerNorm(out_dim), nn.Tanh())

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """``[B, *shape]`` to ``[B, out_dim]``."""
        return self.head(self._frozen(pictures))  # type: ignore[no-any-return]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move the frozen network to another device too."""
        self._frozen.net._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        """Load the state, unless it belongs to an encoder over other weights."""
        expected = state_dict.get(f"{prefix}sha256")
        if expected is not None and not torch.equal(expected.cpu(), self.sha256.cpu()):
            raise CheckpointError(
                f"{PLACE}{f'.{self._path}' if self._path else ''}: expected the weights with which the model was "
                f"trained, SHA-256 {_as_text(expected)}, found SHA-256 {_as_text(self.sha256)} in "
                f"{self._frozen.origin}: every host needs the same weights"
            )
        super()._load_from_state_dict(state_dict, prefix, *others)


def load_frozen_networks(
    configs: Mapping[str, FrozenEncoderConfig], leaves: Mapping[str, Space[Any]], feature_dim: int
) -> dict[str, FrozenNetwork]:
    """Build the frozen networks of an agent, by the paths of the pictures that they encode.

    Pictures of one shape with the same settings share a network.

    Raises:
        ConfigError: a path is not that of a picture, a parameter is unknown or missing, or a file of weights cannot be
            read or does not fit the network.
        PluginError: a target cannot be loaded, or makes something else than such a network.
    """
    pictures = {path: leaf for path, leaf in leaves.items() if is_picture(leaf)}
    built: dict[tuple[str, tuple[int, ...]], FrozenNetwork] = {}
    found: dict[str, FrozenNetwork] = {}
    for path, config in configs.items():
        if path not in pictures:
            paths = ", ".join(map(repr, pictures)) or "none in this space"
            raise ConfigError(f"{PLACE}: expected paths of pictures ({paths}), found {path!r}{nearest(path, pictures)}")
        shape = pictures[path].shape or ()
        kind = (config.model_dump_json(), shape)
        if kind not in built:
            built[kind] = _load(config, shape, feature_dim, f"{PLACE}.{path}" if path else PLACE)
        found[path] = built[kind]
    return found


def _load(config: FrozenEncoderConfig, shape: tuple[int, ...], feature_dim: int, where: str) -> FrozenNetwork:
    config.check(where, frozenset(), optional=frozenset({"in_shape", "out_dim"}))
    net = config.build(optional={"in_shape": shape, "out_dim": feature_dim})
    if not isinstance(net, nn.Module):
        raise PluginError(f"{where}: expected a torch.nn.Module, found {type(net).__name__}")
    if config.weights is not None:
        _read_weights(net, expand_path(config.weights, f"{where}.weights"), f"{where}.weights")
    origin = config.target if config.weights is None else f"{config.target} with {config.weights}"
    return FrozenNetwork(net, shape, origin)


def _read_weights(net: nn.Module, path: Path, where: str) -> None:
    """Load a safetensors file into a network."""
    try:
        if not path.is_file():  # Reading a device would never end.
            raise FileNotFoundError(None, "there is no such file")
        tensors = read_tensors(np.fromfile(path, np.uint8))
        net.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
    except OSError as error:
        raise ConfigError(
            f"{where}: expected a safetensors file, which each host that acts or learns needs; {path} cannot be read "
            f"here: {error.strerror}"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{where}: {path} does not fit the network: {error}") from error


def _digest(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """SHA-256 of the names, dtypes, shapes and values of tensors, uint8 ``[32]``."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name}:{value.dtype}:{list(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def _as_text(sha256: torch.Tensor) -> str:
    """The first 8 bytes as hexadecimal digits, enough to tell two files apart."""
    return bytes(sha256.tolist())[:8].hex() + "…"
