from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from safetensors.torch import save_file
from torch import nn

from common.agents.networks import ConvNet
from common.agents.networks.encoders import JointEncoder
from common.agents.networks.frozen import FrozenEncoder, FrozenEncoderConfig, FrozenNetwork, load_frozen_networks
from common.errors import CheckpointError, ConfigError, PluginError
from common.settings import validate

CAMERA = Box(0, 255, (3, 12, 12), np.uint8)
LEAVES: dict[str, gymnasium.Space[Any]] = {
    "front": CAMERA,
    "joints": Box(-1, 1, (3,), np.float32),
    "wrist": CAMERA,
}


def write_weights(path: Path, seed: int = 0, out_dim: int = 5) -> str:
    """The weights of a small network of convolutions, as a safetensors file; its path."""
    torch.manual_seed(seed)
    save_file(ConvNet(CAMERA.shape, out_dim).state_dict(), path)
    return str(path)


def settings(weights: str | None = None, target: str = "common.agents.networks:ConvNet", **params: Any) -> Any:
    return validate(FrozenEncoderConfig, {"target": target, "params": params, "weights": weights})


def load(weights: str, paths: tuple[str, ...] = ("front",)) -> dict[str, FrozenNetwork]:
    return load_frozen_networks({path: settings(weights) for path in paths}, LEAVES, 5)


def observations(n: int = 4) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    pictures = {path: torch.from_numpy(rng.integers(256, size=(n, 3, 12, 12), dtype=np.uint8)) for path in LEAVES}
    return {**pictures, "joints": torch.zeros(n, 3)}


def scaled_pictures() -> nn.Module:
    """A user's own factory, whose network has no weights."""
    return nn.Sequential(ToFloat(), nn.AvgPool2d(4))


class ToFloat(nn.Module):
    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures / 255


def linear_of_bytes() -> nn.Module:
    return nn.Linear(12, 2)


class _TwoOutputs(nn.Module):
    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return pictures.float(), pictures.float()


def two_outputs() -> nn.Module:
    return _TwoOutputs()


def no_network() -> str:
    return "a network"


def test_the_features_are_those_of_the_network_with_the_weights_of_the_file(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "net.safetensors")
    torch.manual_seed(0)
    expected, pictures = ConvNet(CAMERA.shape, 5), observations()["front"]
    torch.manual_seed(7)
    assert torch.equal(load(weights)["front"](pictures), expected(pictures))


def test_maps_of_a_users_own_factory_become_features() -> None:
    networks = load_frozen_networks({"wrist": settings(None, f"{__name__}:scaled_pictures")}, LEAVES, 5)
    assert networks["wrist"].n_features == 3 * 3 * 3


def test_an_encoder_learns_its_head_alone_and_its_state_has_a_hash_for_the_weights(tmp_path: Path) -> None:
    frozen = load(write_weights(tmp_path / "net.safetensors"))
    encoder = JointEncoder({"front": CAMERA}, 6, frozen)
    names = {"leaves.0.head.0.weight", "leaves.0.head.0.bias", "leaves.0.head.1.weight", "leaves.0.head.1.bias"}
    assert {name for name, _ in encoder.named_parameters()} == names
    assert encoder.state_dict().keys() == names | {"leaves.0.sha256"}
    assert encoder(observations()).shape == (4, 6)
    encoder(observations()).sum().backward()
    assert all(parameter.grad is None for parameter in frozen["front"].net.parameters())


def test_a_frozen_network_stays_in_eval_mode_and_is_shared_by_copies(tmp_path: Path) -> None:
    frozen = load(write_weights(tmp_path / "net.safetensors"))
    encoder = JointEncoder({"front": CAMERA}, 6, frozen)
    encoder.train()
    assert not frozen["front"].net.training
    copied = deepcopy(encoder)
    (one,), (other,) = (
        [part for part in net.modules() if isinstance(part, FrozenEncoder)] for net in (encoder, copied)
    )
    assert other._frozen is one._frozen
    assert other.head is not one.head


def test_a_frozen_network_moves_with_its_encoder(tmp_path: Path) -> None:
    frozen = load(write_weights(tmp_path / "net.safetensors"))
    JointEncoder({"front": CAMERA}, 6, frozen).to("meta")
    assert {parameter.device.type for parameter in frozen["front"].net.parameters()} == {"meta"}


def test_cameras_of_one_shape_and_settings_share_a_network(tmp_path: Path) -> None:
    frozen = load(write_weights(tmp_path / "net.safetensors"), ("front", "wrist"))
    assert frozen["front"] is frozen["wrist"]


def test_a_state_that_was_trained_with_other_weights_is_refused(tmp_path: Path) -> None:
    one, other = (write_weights(tmp_path / f"{seed}.safetensors", seed) for seed in (0, 1))
    trained, mine = (JointEncoder({"wrist": CAMERA}, 6, load(weights, ("wrist",))) for weights in (one, other))
    again = JointEncoder({"wrist": CAMERA}, 6, load(one, ("wrist",)))
    again.load_state_dict(trained.state_dict())
    assert torch.equal(again(observations()), trained(observations()))
    expected = (
        r"frozen_encoders\.wrist: expected the weights with which the model was trained, SHA-256 [0-9a-f]{16}…, found "
        r"SHA-256 [0-9a-f]{16}… in common\.agents\.networks:ConvNet with .*1\.safetensors"
    )
    with pytest.raises(CheckpointError, match=expected):
        mine.load_state_dict(trained.state_dict())


@pytest.mark.parametrize(
    ("path", "config", "error", "message"),
    [
        ("joints", settings(), ConfigError, r"expected paths of pictures \('front', 'wrist'\), found 'joints'"),
        ("wirst", settings(), ConfigError, "found 'wirst'.*wrist"),
        (
            "wrist",
            settings("nowhere.safetensors"),
            ConfigError,
            r"wrist\.weights: expected a safetensors file.*nowhere",
        ),
        ("wrist", settings("/dev/zero"), ConfigError, "/dev/zero cannot be read here: there is no such file"),
        ("wrist", settings(hiden=3), ConfigError, r"wrist\.params\.hiden: unknown parameter"),
        (
            "wrist",
            settings(None, f"{__name__}:no_network"),
            PluginError,
            "wrist: expected a torch.nn.Module, found str",
        ),
        (
            "wrist",
            settings(None, f"{__name__}:linear_of_bytes"),
            PluginError,
            r"must turn pictures \[2, 3, 12, 12\] of bytes into floats \[2, …\], found RuntimeError",
        ),
        (
            "wrist",
            settings(None, f"{__name__}:two_outputs"),
            PluginError,
            r"must turn pictures \[2, 3, 12, 12\] of bytes into floats \[2, …\], found AttributeError: 'tuple'",
        ),
    ],
)
def test_what_does_not_fit_is_named(path: str, config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_frozen_networks({path: config}, LEAVES, 5)


@pytest.mark.parametrize("content", [b"no weights", None], ids=["no tensors", "tensors of another network"])
def test_a_file_that_does_not_fit_the_network_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    write_weights(path, out_dim=9)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"frozen_encoders\.front\.weights: .*net\.safetensors does not fit"):
        load(str(path))
