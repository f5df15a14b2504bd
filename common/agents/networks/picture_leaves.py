"""Pictures among observations: which leaves are pictures, where their axes are, and random shifts of them.

A picture is a leaf of bytes with at least 8 x 8 pixels: ``[H, W]``, ``[C, H, W]`` or ``[H, W, C]``, or a stack of k
pictures with colours, ``[k, C, H, W]`` or ``[k, H, W, C]``. A stack without colours, ``[k, H, W]``, has k channels. The
channels are the last axis if it is shorter than the axis two before it; otherwise they come before the height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import torch

from common.errors import ConfigError
from common.spaces import leaves_of, name_of

MIN_SIDE: Final = 8
"""Bytes with fewer rows or columns count as vectors."""


def has_channels_last(shape: Sequence[int]) -> bool:
    """Whether the channels of a picture of this shape are its last axis."""
    return len(shape) >= 3 and shape[-1] < shape[-3]


def size_of(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of a picture of this shape."""
    height, width = shape[-3:-1] if has_channels_last(shape) else shape[-2:]
    return height, width


def is_picture(space: gymnasium.Space[Any]) -> bool:
    """Whether a leaf holds pictures."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 4:
        return False
    return min(size_of(space.shape)) >= MIN_SIDE


def to_images(pictures: torch.Tensor) -> torch.Tensor:
    """Pictures ``[B, *shape]`` as images ``[B, C, H, W]``; a stack's channels stand one after another."""
    if has_channels_last(pictures.shape[1:]):
        pictures = pictures.movedim(-1, -3)
    if pictures.dim() == 4:
        return pictures
    return pictures.reshape(pictures.shape[0], -1, *pictures.shape[-2:])


class RandomShift:
    """Shifts pictures at random, so that networks do not learn single pixels by heart (DrQ, arXiv:2004.13649).

    Each picture of a batch moves by up to ``pixels`` up or down and left or right; its edge is repeated in the empty
    border. All frames of a stack move together; ``obs`` and ``next_obs`` move independently.

    Args:
        observations: the agent's observation space.
        pixels: how far, at most; 0 leaves batches as they are.
        seed: of the shifts.
        device: where batches are.

    Raises:
        ConfigError: no leaf of the space is a picture.
    """

    def __init__(self, observations: gymnasium.Space[Any], pixels: int, seed: int, device: torch.device) -> None:
        paths = [path for path, leaf in leaves_of(observations).items() if is_picture(leaf)]
        if pixels and not paths:
            raise ConfigError(
                "agent.params.random_shift: expected observations with pictures of bytes, at least "
                f"{MIN_SIDE} x {MIN_SIDE}, found {observations}"
            )
        self._columns = [name_of(prefix, path) for prefix in ("obs", "next_obs") for path in paths] if pixels else []
        self._pixels = pixels
        self.generator = torch.Generator(device).manual_seed(seed) if pixels else None
        """Draws the shifts; it is saved because the agent has it as an attribute too. None without shifts."""

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch with shifted pictures, of the same shapes and dtypes."""
        return {**batch, **{name: self._shift(batch[name]) for name in self._columns if name in batch}}

    def _shift(self, pictures: torch.Tensor) -> torch.Tensor:
        offsets = torch.randint(
            2 * self._pixels + 1, (2, len(pictures)), generator=self.generator, device=pictures.device
        )
        return shift(pictures, offsets, self._pixels)


def shift(pictures: torch.Tensor, offsets: torch.Tensor, pixels: int) -> torch.Tensor:
    """Give each of the pictures ``[B, *shape]`` a border of ``pixels``, which repeats its edge, and cut its shape out.

    Args:
        pictures: of any dtype.
        offsets: how far down and to the right the cuts begin, ``[2, B]`` int64 from 0 to ``2 * pixels``; ``pixels``
            gives the picture itself.
        pixels: width of the border.
    """
    images = to_images(pictures)
    height, width = images.shape[-2:]
    bordered = _with_border(_with_border(images, 2, pixels), 3, pixels)
    cuts = bordered.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, 2 pixels + 1, 2 pixels + 1, H, W], a view.
    index = torch.arange(len(images), device=images.device)
    return _as_pictures(cuts[index, :, offsets[0], offsets[1]], pictures.shape)


def _with_border(images: torch.Tensor, axis: int, pixels: int) -> torch.Tensor:
    """Images with their first and last line along an axis repeated; torch's padding does not support bytes."""
    sizes = [-1] * images.dim()
    sizes[axis] = pixels
    first, last = images.narrow(axis, 0, 1), images.narrow(axis, -1, 1)
    return torch.cat((first.expand(sizes), images, last.expand(sizes)), dim=axis)


def _as_pictures(images: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Images ``[B, C, H, W]`` as pictures of ``[B, *shape]``: the reverse of ``to_images``."""
    if not has_channels_last(shape[1:]):
        return images.reshape(shape)
    moved = (*shape[:-3], shape[-1], *shape[-3:-1])  # The channels before height and width.
    return images.reshape(moved).movedim(-3, -1)
