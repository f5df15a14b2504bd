"""Pictures among observations: which leaves are pictures, random shifts of them, and their networks of convolutions.

A picture is a leaf of bytes with at least 8 x 8 pixels: ``[H, W]``, ``[C, H, W]`` or ``[H, W, C]``, or a stack of k
pictures with colours, ``[k, C, H, W]`` or ``[k, H, W, C]``. A stack without colours, ``[k, H, W]``, has k channels. The
channels are the last axis if it is shorter than the axis two before it; otherwise they come before the height.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from common.agents.networks.blocks import Residual
from common.agents.networks.layers import Head, Linear
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


FIRST_ITERATIONS = 15
"""Power iterations at the beginning; each call in train mode adds one."""


class SpectralConv2d(nn.Conv2d):
    """A convolution whose kernel ``[out, in * height * width]`` has the spectral norm 1.

    ``W / |W^T u|``, where ``u`` follows the left singular vector of the largest singular value by one power iteration
    in each call in train mode (algorithm 1 of the paper). In eval mode ``u`` does not change; it is part of the model.

    Arguments are those of ``torch.nn.Conv2d``.
    """

    u: torch.Tensor  # [out]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("u", functional.normalize(torch.randn(self.out_channels), dim=0))
        for _ in range(FIRST_ITERATIONS):
            self._iterate()

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """``[B, in, H, W]`` to ``[B, out, H', W']``."""
        if self.training:
            self._iterate()
        # A copy: the next call changes u before the gradients of this one are computed.
        norm = torch.mv(self.weight.flatten(1).t(), self.u.clone()).norm()
        return self._conv_forward(maps, self.weight / norm, self.bias)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _iterate(self) -> None:
        matrix = self.weight.flatten(1)
        v = functional.normalize(torch.mv(matrix.t(), self.u), dim=0)
        self.u.copy_(functional.normalize(torch.mv(matrix, v), dim=0))


class Cnn(nn.Module):
    """Convolutions over images, a hidden layer, outputs.

    Args:
        convs: takes C and makes the layers that turn images ``[B, C, H, W]`` into maps.
        in_shape: of pictures as ``common.agents.networks.picture_networks`` takes them, such as ``[C, H, W]``.
        out_dim: number of outputs.
        hidden: width of the hidden layer; None: there is none.
        observations: the space of the pictures, which are divided by its greatest value; None: that of a byte.

    Raises:
        ConfigError: ``in_shape`` is not that of a picture, or too small for the convolutions.
    """

    def __init__(
        self,
        convs: Callable[[int], nn.Module],
        in_shape: Sequence[int],
        out_dim: int,
        hidden: int | None,
        observations: gymnasium.Space[Any] | None,
    ) -> None:
        super().__init__()
        self._greatest = _greatest_value(observations)
        name, found = type(self).__name__, list(in_shape)
        if not 2 <= len(found) <= 4:
            raise ConfigError(f"{name}: expected images [C, H, W], found observations {found}")
        images = to_images(torch.zeros(1, *found))
        maps = convs(images.shape[1])
        try:
            n_features = maps(images).numel()
        except RuntimeError as error:
            raise ConfigError(f"{name}: expected larger images [C, H, W], found {found}: {error}") from error
        dense = () if hidden is None else (Linear(n_features, hidden), nn.ReLU(inplace=True))
        self.layers = nn.Sequential(maps, nn.Flatten(), *dense, Head(hidden or n_features, out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` to ``[B, out_dim]``."""
        # With channels last, ImpalaCnn learns 1.8 times as fast on a CPU core, NatureCnn 1.05 times.
        images = to_images(obs).contiguous(memory_format=torch.channels_last)
        if obs.dtype == torch.uint8:
            images = images.float().div_(self._greatest)  # In place in the copy that float() has made.
        elif obs.dtype != torch.bool:
            images = images.float() / self._greatest
        return self.layers(images.float())  # type: ignore[no-any-return]


def _greatest_value(space: gymnasium.Space[Any] | None) -> float:
    """The greatest value of a Box, such as 1 of the cells of a board; of a space without a bound, that of a byte."""
    high = float(space.high.max()) if isinstance(space, gymnasium.spaces.Box) else 0.0
    return high if 0 < high < float("inf") else 255.0


class NatureCnn(Cnn):
    """The network of DQN on Atari (Mnih et al. 2015), for images of at least 36 x 36 bytes.

    It is made for 84 x 84, which gives 3,136 features after the convolutions. Images of 42 x 42 give 64 features, which
    may all become 0: then the outputs are the same for every image. Use ``ConvNet`` with smaller strides for them.
    Arguments and errors are those of ``Cnn``.
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        out_dim: int,
        hidden: int = 512,
        *,
        observations: gymnasium.Space[Any] | None = None,
    ) -> None:
        convs = partial(_listed_convs, layers=((32, 8, 4), (64, 4, 2), (64, 3, 1)))
        super().__init__(convs, in_shape, out_dim, hidden, observations)


class ConvNet(Cnn):
    """Layers of convolutions from a list of their sizes, for pictures of any size.

    The default is the network of MinAtar's authors for its 10 x 10 cells (arXiv:1903.03176). Other arguments and errors
    are those of ``Cnn``.

    Args:
        layers: channels, kernel size and stride of each layer.
        hidden: width of the hidden layer; None: there is none, and the outputs follow on the convolutions.
        columns: the number of columns of a board that may be mirrored; the first outputs are one for each column. The
            outputs are then means over the board and its mirror image, so both are learnt at once. None: not mirrored.

    Raises:
        ConfigError: also if ``layers`` are no triples of positive whole numbers, or ``columns`` are not from 1 to
            ``out_dim``.
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        out_dim: int,
        layers: Sequence[Sequence[int]] = ((16, 3, 1),),
        hidden: int | None = 128,
        *,
        columns: int | None = None,
        observations: gymnasium.Space[Any] | None = None,
    ) -> None:
        if columns is not None and columns not in range(1, out_dim + 1):
            raise ConfigError(f"ConvNet: expected columns from 1 to {out_dim}, the number of outputs, found {columns}")
        for layer in layers:
            if len(layer) != 3 or not all(isinstance(number, int) and number > 0 for number in layer):
                raise ConfigError(f"ConvNet: expected layers of [channels, kernel size, stride], found {layer}")
        super().__init__(partial(_listed_convs, layers=layers), in_shape, out_dim, hidden, observations)
        self._columns = columns

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` to ``[B, out_dim]``."""
        if self._columns is None:
            return super().forward(obs)
        mirrored = obs.flip(-2 if has_channels_last(obs.shape[1:]) else -1)
        own, other = super().forward(torch.cat((obs, mirrored))).chunk(2)
        return (own + torch.cat((other[:, : self._columns].flip(-1), other[:, self._columns :]), dim=1)) / 2


def _listed_convs(n_channels: int, layers: Sequence[Sequence[int]]) -> nn.Module:
    """Make convolutions of these channels, kernel sizes and strides, with a ReLU after each."""
    found: list[nn.Module] = []
    for channels, kernel, stride in layers:
        found += [nn.Conv2d(n_channels, channels, kernel, stride=stride), nn.ReLU(inplace=True)]
        n_channels = channels
    return nn.Sequential(*found)


class ImpalaCnn(Cnn):
    """The deep network of IMPALA (arXiv:1802.01561, figure 3) without its LSTM, for images of bytes of any size.

    Beyond The Rainbow (arXiv:2411.03820) uses ``width=2``, ``max_pool=6`` and ``spectral_norm``. Other arguments and
    errors are those of ``Cnn``.

    Args:
        sections: channels of each section, which halves height and width.
        hidden: width of the hidden layer; None: there is none, and the outputs follow on the convolutions.
        width: multiplies the channels of the sections.
        max_pool: rows and columns to which the last maps are pooled, for images of any size; None: not pooled.
        spectral_norm: whether the convolutions of the residual blocks are normalised (arXiv:1802.05957).
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        out_dim: int,
        sections: Sequence[int] = (16, 32, 32),
        hidden: int | None = 256,
        *,
        width: int = 1,
        max_pool: int | None = None,
        spectral_norm: bool = False,
        observations: gymnasium.Space[Any] | None = None,
    ) -> None:
        channels = [width * section for section in sections]
        convs = partial(_impala_convs, sections=channels, max_pool=max_pool, spectral_norm=spectral_norm)
        super().__init__(convs, in_shape, out_dim, hidden, observations)


def _impala_convs(n_channels: int, sections: Sequence[int], max_pool: int | None, *, spectral_norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise((n_channels, *sections)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [_make_residual(n_out, spectral_norm=spectral_norm) for _ in range(2)]
    pool = [] if max_pool is None else [nn.AdaptiveMaxPool2d(max_pool)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), *pool)


def _make_residual(channels: int, *, spectral_norm: bool) -> Residual:
    """Make two convolutions, normalised or not, that are added to their input (He et al., arXiv:1603.05027)."""
    conv = SpectralConv2d if spectral_norm else nn.Conv2d
    first, second = (conv(channels, channels, 3, padding=1) for _ in range(2))
    return Residual(nn.ReLU(), first, nn.ReLU(inplace=True), second)
