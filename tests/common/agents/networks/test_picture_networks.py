from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn
from torch.nn import functional

from common.agents.networks.encoders import build_network
from common.agents.networks.picture_networks import (
    ConvNet,
    ImpalaCnn,
    NatureCnn,
    RandomShift,
    SpectralConv2d,
    is_picture,
    shift,
    size_of,
    to_images,
)
from common.errors import ConfigError
from common.plugins.part_config import PluginConfig


def bytes_of(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


def pictures(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))


@pytest.mark.parametrize(
    ("shape", "images", "size"),
    [
        ((84, 96), (1, 84, 96), (84, 96)),
        ((4, 84, 84), (4, 84, 84), (84, 84)),
        ((3, 64, 48), (3, 64, 48), (64, 48)),
        ((64, 48, 3), (3, 64, 48), (64, 48)),
        ((4, 64, 48, 3), (12, 64, 48), (64, 48)),
        ((4, 3, 64, 48), (12, 64, 48), (64, 48)),
    ],
)
def test_pictures_of_each_layout_become_images_with_channels_first(
    shape: tuple[int, ...], images: tuple[int, ...], size: tuple[int, int]
) -> None:
    assert is_picture(bytes_of(*shape))
    assert size_of(shape) == size
    assert to_images(pictures(2, *shape)).shape == (2, *images)


def test_the_channels_of_a_stack_stand_picture_after_picture() -> None:
    first, last = pictures(2, 4, 3, 16, 16), pictures(2, 4, 3, 16, 16).movedim(2, -1)
    assert torch.equal(to_images(first), first.flatten(1, 2))
    assert torch.equal(to_images(last), first.flatten(1, 2))


@pytest.mark.parametrize(
    "space",
    [
        bytes_of(128),
        bytes_of(4, 128),
        bytes_of(7, 9),
        bytes_of(2, 2, 2, 64, 64),
        Box(0, 1, (64, 64), np.float32),
        Discrete(5),
    ],
    ids=str,
)
def test_vectors_small_boards_and_floats_are_no_pictures(space: gymnasium.Space[Any]) -> None:
    assert not is_picture(space)


# Random shifts.


@pytest.mark.parametrize("shape", [(12, 10), (4, 12, 10), (12, 10, 3), (4, 12, 10, 3), (4, 3, 12, 10)])
def test_a_shifted_picture_is_a_part_of_the_picture_whose_edges_are_repeated(shape: tuple[int, ...]) -> None:
    given = pictures(6, *shape)
    offsets = torch.tensor([[0, 4, 2, 1, 3, 2], [4, 0, 2, 2, 1, 3]])
    found = shift(given, offsets, 2)
    assert (found.shape, found.dtype) == (given.shape, given.dtype)
    images, shifted = to_images(given).numpy(), to_images(found).numpy()
    for i, (down, right) in enumerate(offsets.T.tolist()):
        bordered = np.pad(images[i], ((0, 0), (2, 2), (2, 2)), mode="edge")
        np.testing.assert_array_equal(shifted[i], bordered[:, down : down + 12, right : right + 10])
    assert torch.equal(found[2], given[2]), "in the middle stands the picture itself"


def shifting(space: gymnasium.Space[Any], pixels: int, seed: int = 0) -> RandomShift:
    return RandomShift(space, pixels, seed, torch.device("cpu"))


def test_pictures_of_a_structured_observation_are_shifted_and_nothing_else_is() -> None:
    space = Dict({"camera": bytes_of(12, 12, 3), "joints": Box(-1, 1, (7,), np.float32)})
    batch = {
        "obs/camera": pictures(32, 12, 12, 3),
        "next_obs/camera": pictures(32, 12, 12, 3),
        "obs/joints": torch.rand(32, 7),
        "reward": torch.rand(32),
    }
    found = shifting(space, 3)(batch)
    assert list(found) == list(batch)
    assert all(found[name] is batch[name] for name in ("obs/joints", "reward"))
    assert not torch.equal(found["obs/camera"], batch["obs/camera"])
    assert not torch.equal(found["obs/camera"], found["next_obs/camera"]), "they move apart from each other"


def test_shifts_are_drawn_anew_for_each_batch_and_go_on_where_the_generator_was_saved() -> None:
    batch, one, other = {"obs": pictures(16, 12, 12)}, shifting(bytes_of(12, 12), 3), shifting(bytes_of(12, 12), 3, 1)
    assert one.generator is not None
    assert other.generator is not None
    first = one(batch)["obs"]
    other.generator.set_state(one.generator.get_state())
    second = one(batch)["obs"]
    assert not torch.equal(first, second)
    assert torch.equal(second, other(batch)["obs"])


def test_without_pixels_a_batch_stays_as_it_is() -> None:
    batch = {"obs": pictures(2, 12, 12)}
    shift_none = shifting(bytes_of(12, 12), 0)
    assert shift_none(batch)["obs"] is batch["obs"]
    assert shift_none.generator is None


def test_shifts_of_observations_without_pictures_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"random_shift: expected observations with pictures of bytes, at least 8 x 8"
    ):
        shifting(Box(-1, 1, (3,), np.float32), 4)


def images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))


def test_nature_cnn_computes_what_the_paper_says() -> None:
    net, obs = NatureCnn((4, 84, 84), 6), images(3, 4, 84, 84)
    *convs, w4, b4, w5, b5 = net.parameters()
    maps = obs.float() / 255
    for weight, bias, stride in zip(convs[::2], convs[1::2], (4, 2, 1), strict=True):
        maps = functional.conv2d(maps, weight, bias, stride).relu()
    assert maps.shape == (3, 64, 7, 7)
    slow = functional.linear(functional.linear(maps.flatten(1), w4, b4).relu(), w5, b5)
    torch.testing.assert_close(net(obs), slow)
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_687_206


def test_impala_cnn_computes_what_the_paper_says() -> None:
    net, obs = ImpalaCnn((4, 84, 84), 6), images(2, 4, 84, 84)
    *convs, w4, b4, w5, b5 = net.parameters()
    pairs = iter(list(zip(convs[::2], convs[1::2], strict=True)))

    def conv(maps: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(maps, *next(pairs), padding=1)

    maps = obs.float() / 255
    for _ in range(3):
        maps = functional.max_pool2d(conv(maps), 3, 2, 1)
        for _ in range(2):
            maps = maps + conv(conv(maps.relu()).relu())
    assert maps.shape == (2, 32, 11, 11)
    slow = functional.linear(functional.linear(maps.relu().flatten(1), w4, b4).relu(), w5, b5)
    torch.testing.assert_close(net(obs), slow)


@pytest.mark.parametrize(
    ("kind", "in_shape", "params"),
    [
        (NatureCnn, (1, 36, 36), {"hidden": 8}),
        (NatureCnn, (3, 40, 64), {}),
        (ImpalaCnn, (3, 9, 5), {"sections": (4, 8), "hidden": 8}),
        (NatureCnn, (40, 64), {}),
        (NatureCnn, (40, 64, 3), {}),
        (ImpalaCnn, (4, 20, 12, 3), {}),
        (ImpalaCnn, (4, 42, 42), {"width": 2, "max_pool": 6, "spectral_norm": True, "hidden": None}),
        (ConvNet, (4, 10, 10), {}),
        (ConvNet, (4, 42, 42), {"layers": [[16, 4, 2], [32, 4, 2]], "hidden": 256}),
        (ConvNet, (10, 12), {"layers": [], "hidden": None}),
    ],
)
def test_images_of_other_sizes_and_widths_are_taken(
    kind: type[nn.Module], in_shape: tuple[int, ...], params: dict[str, object]
) -> None:
    assert kind(in_shape, 5, **params)(images(2, *in_shape)).shape == (2, 5)


@pytest.mark.parametrize(
    ("in_shape", "message"),
    [
        ((84,), r"^NatureCnn: expected images \[C, H, W\], found observations \[84\]$"),
        ((4, 20, 20), r"^NatureCnn: expected larger images \[C, H, W\], found \[4, 20, 20\]"),
    ],
)
def test_observations_that_are_no_images_are_refused(in_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NatureCnn(in_shape, 6)


def test_a_conv_net_of_bools_computes_what_the_authors_of_minatar_do() -> None:
    net, obs = ConvNet((10, 10, 4), 6), torch.rand(3, 10, 10, 4) > 0.5
    weight, bias, w1, b1, w2, b2 = net.parameters()
    maps = functional.conv2d(obs.permute(0, 3, 1, 2).float(), weight, bias).relu()
    assert maps.shape == (3, 16, 8, 8)
    slow = functional.linear(functional.linear(maps.flatten(1), w1, b1).relu(), w2, b2)
    torch.testing.assert_close(net(obs), slow)


def test_bytes_are_divided_by_255_and_bools_are_not() -> None:
    net, obs = ConvNet((4, 10, 10), 6), torch.rand(3, 4, 10, 10) > 0.5
    torch.testing.assert_close(net(obs), net(255 * obs.to(torch.uint8)))


@pytest.mark.parametrize(("shape", "width"), [((6, 7, 2), 2), ((2, 6, 7), 3), ((6, 7), 2)], ids=str)
def test_with_columns_a_mirrored_board_has_mirrored_actions_and_the_same_value(
    shape: tuple[int, ...], width: int
) -> None:
    net, boards = ConvNet(shape, 8, [[16, 4, 1]], columns=7), torch.rand(5, *shape) > 0.5
    outputs, mirrored = net(boards), net(boards.flip(width))
    torch.testing.assert_close(mirrored[:, :7].flip(1), outputs[:, :7])
    torch.testing.assert_close(mirrored[:, 7], outputs[:, 7])
    assert not torch.allclose(outputs[:, 0], outputs[:, 6])


@pytest.mark.parametrize("columns", [0, 7, 2.5])
def test_columns_that_are_no_number_of_outputs_are_refused(columns: Any) -> None:
    message = f"^ConvNet: expected columns from 1 to 6, the number of outputs, found {columns}$"
    with pytest.raises(ConfigError, match=message):
        ConvNet((6, 7, 2), 6, [[16, 4, 1]], columns=columns)


@pytest.mark.parametrize("space", [Box(0, 1, (6, 7, 2), np.int8), Box(0, 255, (6, 7, 2), np.int16)], ids=str)
def test_other_numbers_are_divided_by_the_greatest_of_their_space(space: Box) -> None:
    net = ConvNet((6, 7, 2), 3, observations=space)
    obs = torch.rand(4, 6, 7, 2) > 0.5
    torch.testing.assert_close(net(obs.to(torch.int16) * int(space.high.max())), net(obs))


@pytest.mark.parametrize("kind", [ConvNet, ImpalaCnn, NatureCnn])
def test_each_network_is_told_the_space_of_its_pictures(kind: type[nn.Module]) -> None:
    net = build_network(PluginConfig(target=f"common.agents.networks:{kind.__name__}"), {"": Box(0, 1, (40, 40))}, 5)
    obs = torch.rand(4, 40, 40)
    again = kind((40, 40), 5)
    again.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(obs), again.eval()(255 * obs))


def test_beyond_the_rainbows_network_has_the_sizes_of_the_paper() -> None:
    net = ImpalaCnn((4, 84, 84), 6, width=2, max_pool=6, spectral_norm=True, hidden=512)
    assert [module.out_channels for module in net.modules() if type(module) is nn.Conv2d] == [32, 64, 64]
    normalised = [module.out_channels for module in net.modules() if isinstance(module, SpectralConv2d)]
    assert normalised == [32] * 4 + [64] * 8
    assert [module.in_features for module in net.modules() if isinstance(module, nn.Linear)] == [64 * 6 * 6, 512]


def test_images_that_are_too_small_for_the_listed_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ConvNet: expected larger images \[C, H, W\], found \[4, 10, 10\]"):
        ConvNet((4, 10, 10), 6, layers=[[16, 8, 4], [32, 4, 2]])


@pytest.mark.parametrize("layer", [[16, 3], [16, 3, 0], [16, 3.5, 1]])
def test_layers_that_are_no_triples_of_positive_numbers_are_refused(layer: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"^ConvNet: expected layers of \[channels, kernel size, stride\], found"):
        ConvNet((4, 10, 10), 6, layers=[layer])


def largest(weight: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.svdvals(weight.flatten(1))[0]
    return norm


def test_weights_are_divided_by_their_largest_singular_value() -> None:
    torch.manual_seed(0)
    conv, maps = SpectralConv2d(3, 8, 3, padding=1), torch.rand(2, 3, 6, 6)
    for _ in range(50):
        conv(maps)
    slow = functional.conv2d(maps, conv.weight / largest(conv.weight), conv.bias, padding=1)
    torch.testing.assert_close(conv(maps), slow, rtol=1e-3, atol=1e-4)


def test_a_new_layer_knows_its_norm_nearly() -> None:
    torch.manual_seed(0)
    conv = SpectralConv2d(8, 8, 3)
    norm = torch.mv(conv.weight.flatten(1).t(), conv.u).norm()
    torch.testing.assert_close(norm, largest(conv.weight), rtol=0.1, atol=0)


def test_the_vector_follows_the_weights_in_train_mode_only() -> None:
    conv, maps = SpectralConv2d(2, 4, 3), torch.rand(1, 2, 5, 5)
    conv.eval()
    before = conv.u.clone()
    assert torch.equal(conv(maps), conv(maps))
    assert torch.equal(conv.u, before)
    conv.train()
    conv(maps)
    assert not torch.equal(conv.u, before)
    assert "u" in conv.state_dict()


def test_gradients_are_those_of_weights_over_their_norm() -> None:
    torch.manual_seed(0)
    conv, maps = SpectralConv2d(2, 4, 3), torch.rand(1, 2, 5, 5)
    for _ in range(100):
        conv(maps)
    (conv(maps).square().sum() + conv(maps).sum()).backward()  # Two calls in train mode before the gradients.
    copy = conv.weight.detach().clone().requires_grad_()
    slow = functional.conv2d(maps, copy / largest(copy), conv.bias)
    (expected,) = torch.autograd.grad(slow.square().sum() + slow.sum(), copy)
    assert conv.weight.grad is not None
    torch.testing.assert_close(conv.weight.grad, expected, rtol=1e-2, atol=1e-3)
