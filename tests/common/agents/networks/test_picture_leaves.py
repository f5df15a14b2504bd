from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from common.agents.networks.picture_leaves import RandomShift, is_picture, shift, size_of, to_images
from common.errors import ConfigError


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
