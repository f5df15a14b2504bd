"""Makes pictures of cameras small on the actor, before they are sent, stored and learnt from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, NonNegativeInt
from torch.nn import functional

from common.data import Array
from common.errors import ConfigError
from common.hints import nearest
from common.lanes.vector_lanes import is_vector
from common.settings import Settings, validate
from common.spaces import AnySpace, flatten, leaves_of, unflatten

WHERE: Final = "PreparePictures"
MIN_SIDE: Final = 8
"""A picture has at least 8 rows and columns, and fewer than 8 channels; the encoders of agents have the same limit."""
Side = Annotated[int, Field(ge=MIN_SIDE)]


class PictureConfig(Settings):
    """How a picture is prepared."""

    crop: tuple[NonNegativeInt, NonNegativeInt, Side, Side] | None = Field(
        None, description="The part to keep: top, left, height and width in pixels; null keeps all of it."
    )
    size: tuple[Side, Side] | None = Field(
        None, description="Height and width to which the part is resized; null keeps its size."
    )


class PicturesConfig(PictureConfig):
    """The settings of all pictures, and other settings for some of them."""

    pictures: dict[str, PictureConfig] = Field(
        default_factory=dict,
        description="Settings of single pictures, by path in the observation; they replace those of all pictures.",
    )

    def of(self, path: str) -> PictureConfig:
        """The settings of the picture at a path."""
        own = self.pictures.get(path, PictureConfig()).model_dump(exclude_unset=True)
        return PictureConfig(**({"crop": self.crop, "size": self.size} | own))


class PreparePictures(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Crops and resizes pictures and puts their channels first: uint8 ``[C, H, W]``, as networks take them.

    A picture is a Box of bytes ``[H, W, C]``, ``[C, H, W]`` or ``[H, W]`` with at least 8 rows and columns and fewer
    than 8 channels, so that the channels are the only short axis. It may be the observation itself or any part of a
    Dict or Tuple observation. Other parts stay as they are. A picture is resized by torch's bilinear filter over all
    of its pixels (``antialias``), which is as fast as OpenCV's area filter and needs no other library.

    Args:
        env: a plain environment, no vector environment.
        params: see ``PicturesConfig``.

    Raises:
        ConfigError: there is no picture, none at a path of ``pictures``, the crop is larger than the picture, or a
            parameter is wrong.
    """

    Config: ClassVar = PicturesConfig

    def __init__(self, env: gymnasium.Env[Any, Any], **params: Any) -> None:
        if is_vector(env):
            raise ConfigError(
                f"{WHERE}: expected a single environment, found the vector environment {env}: set envs_per_actor "
                "instead, or prepare the pictures where the vector environment makes its copies"
            )
        super().__init__(env)
        config = validate(PicturesConfig, params, WHERE)
        self._given = env.observation_space
        shapes = {path: leaf.shape or () for path, leaf in leaves_of(self._given).items() if _is_picture(leaf)}
        if not shapes:
            raise ConfigError(
                f"{WHERE}: expected pictures of bytes, [H, W, C], [C, H, W] or [H, W], with at least {MIN_SIDE} rows "
                f"and columns and fewer channels, found {self._given}"
            )
        for path in config.pictures:
            if path not in shapes:
                raise ConfigError(
                    f"{WHERE}: pictures: expected paths of pictures ({', '.join(shapes)}), found '{path}'"
                    f"{nearest(path, shapes)}"
                )
        self._pictures = {path: _Picture(path, shape, config.of(path)) for path, shape in shapes.items()}
        self.observation_space = _change_leaves(self._given, self._space_of)

    def observation(self, observation: Any) -> Any:
        """The observation with prepared pictures."""
        leaves = flatten(self._given, observation)
        if not isinstance(leaves, dict):
            return self._pictures[""].prepare(leaves)
        prepared = {path: picture.prepare(leaves[path]) for path, picture in self._pictures.items()}
        return unflatten(self.observation_space, leaves | prepared)

    def _space_of(self, path: str, leaf: AnySpace) -> AnySpace:
        return spaces.Box(0, 255, self._pictures[path].shape, np.uint8) if path in self._pictures else leaf


class _Picture:
    """Prepares one picture."""

    def __init__(self, path: str, shape: Sequence[int], config: PictureConfig) -> None:
        self._channels = _channels_axis(shape)
        height, width = (side for axis, side in enumerate(shape) if axis != self._channels)
        n_channels = 1 if self._channels is None else shape[self._channels]
        top, left, self._height, self._width = config.crop or (0, 0, height, width)
        if top + self._height > height or left + self._width > width:
            raise ConfigError(
                f"{WHERE}: crop of {f'picture {path!r}' if path else 'the picture'}: expected top, left, height and "
                f"width within {height} rows and {width} columns, found {list(config.crop or ())}"
            )
        self._rows, self._columns = slice(top, top + self._height), slice(left, left + self._width)
        self._size = config.size or (self._height, self._width)
        self.shape = (n_channels, *self._size)
        """The shape of the prepared picture, ``[C, H, W]``."""

    def prepare(self, picture: Array) -> Array:
        """The picture as bytes ``[C, H, W]``, in new memory."""
        if self._channels is None:
            picture = picture[None]
        elif self._channels:
            picture = picture.transpose(2, 0, 1)
        part = picture[:, self._rows, self._columns]
        if self._size == (self._height, self._width):
            return np.array(part, order="C")
        if not part.flags.writeable or min(part.strides) < 0:  # Torch takes no views of such arrays.
            part = part.copy(order="K")
        pixels = torch.from_numpy(part)
        resized = functional.interpolate(pixels[None], self._size, mode="bilinear", antialias=True)
        return resized[0].contiguous().numpy()


def _is_picture(leaf: AnySpace) -> bool:
    shape = leaf.shape or ()
    if not isinstance(leaf, spaces.Box) or leaf.dtype != np.uint8 or len(shape) not in (2, 3):
        return False
    return [side >= MIN_SIDE for side in shape] in ([True, True], [True, True, False], [False, True, True])


def _channels_axis(shape: Sequence[int]) -> int | None:
    """The axis of a picture's channels, the first or the last; None if it has no channels."""
    if len(shape) == 2:
        return None
    return 0 if shape[0] < MIN_SIDE else 2


def _change_leaves(space: AnySpace, change: Callable[[str, AnySpace], AnySpace], path: str = "") -> AnySpace:
    """The same space with other leaves, each by its path."""

    def inside(key: str, part: AnySpace) -> AnySpace:
        return _change_leaves(part, change, f"{path}/{key}" if path else key)

    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: inside(key, part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([inside(str(i), part) for i, part in enumerate(space.spaces)])
    return change(path, space)
