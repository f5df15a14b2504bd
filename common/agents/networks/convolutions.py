"""Networks of convolutions, for pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from common.agents.networks.layers import Head
from common.agents.networks.pictures import to_images
from common.errors import ConfigError


class Cnn(nn.Module):
    """Convolutions over images of bytes, a hidden layer, outputs.

    Args:
        convs: makes, of C, the layers that turn images ``[B, C, H, W]`` into maps.
        in_shape: of pictures as ``common.agents.networks.pictures`` takes them, such as ``[C, H, W]``.
        out_dim: number of outputs.
        hidden: width of the hidden layer.

    Raises:
        ConfigError: ``in_shape`` is not that of a picture, or too small for the convolutions.
    """

    def __init__(self, convs: Callable[[int], nn.Module], in_shape: Sequence[int], out_dim: int, hidden: int) -> None:
        super().__init__()
        name, found = type(self).__name__, list(in_shape)
        if not 2 <= len(found) <= 4:
            raise ConfigError(f"{name}: expected images [C, H, W], found observations {found}")
        images = to_images(torch.zeros(1, *found))
        maps = convs(images.shape[1])
        try:
            n_features = maps(images).numel()
        except RuntimeError as error:
            raise ConfigError(f"{name}: expected larger images [C, H, W], found {found}: {error}") from error
        dense = nn.Linear(n_features, hidden)
        self.layers = nn.Sequential(maps, nn.Flatten(), dense, nn.ReLU(inplace=True), Head(hidden, out_dim))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """``[B, *in_shape]`` in 0 to 255 to ``[B, out_dim]``."""
        images = to_images(obs).float() / 255
        # With channels last, ImpalaCnn learns 1.8 times as fast on a CPU core, NatureCnn 1.05 times.
        return self.layers(images.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]


class NatureCnn(Cnn):
    """The network of DQN on Atari (Mnih et al. 2015), for images of at least 36 x 36 bytes.

    Args:
        in_shape: ``[C, H, W]``, or of another picture (``common.agents.networks.pictures``).
        out_dim: number of outputs.
        hidden: width of the hidden layer.

    Raises:
        ConfigError: ``in_shape`` is not that of a picture, or too small for the convolutions.
    """

    def __init__(self, in_shape: Sequence[int], out_dim: int, hidden: int = 512) -> None:
        super().__init__(_nature_convs, in_shape, out_dim, hidden)


def _nature_convs(n_channels: int) -> nn.Module:
    first = nn.Conv2d(n_channels, 32, 8, stride=4), nn.ReLU(inplace=True)
    second = nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(inplace=True)
    third = nn.Conv2d(64, 64, 3), nn.ReLU(inplace=True)
    return nn.Sequential(*first, *second, *third)


class ImpalaCnn(Cnn):
    """The deep network of IMPALA (arXiv:1802.01561, figure 3) without its LSTM, for images of bytes of any size.

    Args:
        in_shape: ``[C, H, W]``, or of another picture (``common.agents.networks.pictures``).
        out_dim: number of outputs.
        sections: channels of each section, which halves height and width.
        hidden: width of the hidden layer.

    Raises:
        ConfigError: ``in_shape`` is not that of a picture, or too small for the convolutions.
    """

    def __init__(
        self, in_shape: Sequence[int], out_dim: int, sections: Sequence[int] = (16, 32, 32), hidden: int = 256
    ) -> None:
        super().__init__(partial(_impala_convs, sections=sections), in_shape, out_dim, hidden)


def _impala_convs(n_channels: int, sections: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise((n_channels, *sections)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(n_out), Residual(n_out)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions, added to their input (He et al., arXiv:1603.05027).

    Args:
        channels: of the maps.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.layers = nn.Sequential(nn.ReLU(), first, nn.ReLU(inplace=True), second)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """``[B, C, H, W]`` to the same shape."""
        return maps + self.layers(maps)  # type: ignore[no-any-return]
