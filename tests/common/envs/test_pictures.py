from __future__ import annotations

from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from common.data import Array
from common.envs.pictures import PreparePictures
from common.errors import ConfigError
from common.plugins.part_config import EnvConfig
from common.settings import validate
from crossborder.testing import check_env
from tests.common.agents.parts import Structured


def bytes_of(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


ROBOT = spaces.Dict(
    {
        "front": bytes_of(48, 64, 3),
        "wrist": spaces.Dict({"picture": bytes_of(3, 40, 32), "depth": bytes_of(20, 30)}),
        "joints": spaces.Box(-1, 1, (7,), np.float32),
        "flags": bytes_of(2, 4),
    }
)


class SeededStructured(Structured):
    """``reset(seed=…)`` begins it anew."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0 if seed is not None else self.steps
        return super().reset(seed=seed, options=options)


def env_of(space: gymnasium.Space[Any]) -> Structured:
    return SeededStructured(space, spaces.Box(-1, 1, (2,), np.float32))


def prepared(picture: Array, **params: Any) -> Array:
    found: Array = PreparePictures(env_of(bytes_of(*picture.shape)), **params).observation(picture)
    return found


def smooth_picture(height: int, width: int) -> Array:
    """Waves of another length in each channel, uint8 ``[H, W, 3]``."""
    down, right = np.mgrid[:height, :width]
    waves = [128 + 120 * np.sin(down / height * k) * np.cos(right / width * k) for k in (3, 5, 7)]
    return np.stack(waves, axis=-1).astype(np.uint8)


def test_an_environment_with_prepared_cameras_fits() -> None:
    env = PreparePictures(env_of(ROBOT), size=[16, 24], pictures={"wrist/picture": {"crop": [4, 2, 32, 30]}})
    check_env(env)
    for path, channels in (("front", 3), ("depth", 1), ("picture", 3)):
        space = env.observation_space[path] if path == "front" else env.observation_space["wrist"][path]  # type: ignore[index]
        assert space == bytes_of(channels, 16, 24)
    obs, _ = env.reset(seed=0)
    given, _ = env_of(ROBOT).reset(seed=0)
    np.testing.assert_array_equal(obs["joints"], given["joints"])
    np.testing.assert_array_equal(obs["flags"], given["flags"])


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)], ids=["channels last", "channels first"])
def test_a_picture_is_cropped_without_another_change(axes: tuple[int, int, int]) -> None:
    picture = smooth_picture(48, 64)
    found = prepared(picture.transpose(axes), crop=[8, 16, 20, 30])
    np.testing.assert_array_equal(found, picture[8:28, 16:46].transpose(2, 0, 1))
    assert found.flags.c_contiguous


def test_a_picture_without_channels_is_given_one() -> None:
    picture = smooth_picture(20, 30)[..., 0]
    np.testing.assert_array_equal(prepared(picture), picture[None])


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)], ids=["channels last", "channels first"])
def test_a_resized_picture_is_close_to_that_of_opencvs_area_filter(axes: tuple[int, int, int]) -> None:
    picture = smooth_picture(240, 320)
    expected = cv2.resize(picture[:, 40:280], (64, 64), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    found = prepared(picture.transpose(axes), crop=[0, 40, 240, 240], size=[64, 64])
    assert found.shape == (3, 64, 64)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 3


@pytest.mark.parametrize("view", [np.flipud, np.ascontiguousarray], ids=["upside down", "read-only"])
def test_views_that_torch_does_not_take_are_resized_as_well(view: Any) -> None:
    picture = view(smooth_picture(48, 64))
    expected = prepared(picture.copy(), size=[16, 16])
    picture.flags.writeable = False
    np.testing.assert_array_equal(prepared(picture, size=[16, 16]), expected)


def test_a_prepared_picture_does_not_change_with_the_cameras_memory() -> None:
    picture = smooth_picture(48, 64).transpose(2, 0, 1).copy()
    for params in ({}, {"size": [16, 16]}):
        found = prepared(picture, **params)
        before = found.copy()
        picture += 1
        np.testing.assert_array_equal(found, before)


def test_settings_of_one_camera_replace_those_of_all() -> None:
    pictures = {"wrist/picture": {"size": None}}
    env = PreparePictures(env_of(ROBOT), size=[16, 16], crop=[0, 0, 20, 30], pictures=pictures)
    wrist = env.observation_space["wrist"]  # type: ignore[index]
    assert (wrist["picture"].shape, wrist["depth"].shape) == ((3, 20, 30), (1, 16, 16))


def test_a_configuration_may_name_it_and_is_checked_before_anything_is_built() -> None:
    wrapper = {"target": "common.envs.pictures:PreparePictures", "params": {"size": [64]}}
    config = validate(EnvConfig, {"target": "gymnasium:make", "params": {"id": "x"}, "wrappers": [wrapper]})
    with pytest.raises(ConfigError, match=r"env\.wrappers\.0\.params\.size"):
        config.check("env", frozenset())


@pytest.mark.parametrize(
    ("space", "params", "message"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), {}, "expected pictures of bytes"),
        (bytes_of(64, 64, 9), {}, "expected pictures of bytes.*fewer channels"),
        (bytes_of(4, 64, 64, 3), {}, "expected pictures of bytes"),
        (bytes_of(64, 3, 64), {}, "expected pictures of bytes"),
        (ROBOT, {"pictures": {"wrist/pictur": {}}}, "found 'wrist/pictur'.*wrist/picture"),
        (ROBOT, {"pictures": {"joints": {}}}, "expected paths of pictures .*found 'joints'"),
        (ROBOT, {"pictures": {"front": {"crop": [30, 0, 20, 64]}}}, "crop of picture 'front'.*48 rows and 64 columns"),
        (bytes_of(64, 64), {"size": [4, 4]}, "size.*greater than or equal to 8"),
        (bytes_of(64, 64), {"resize": [16, 16]}, "resize: unknown"),
    ],
)
def test_what_does_not_fit_is_named(space: gymnasium.Space[Any], params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PreparePictures(env_of(space), **params)


def test_a_vector_environment_is_refused() -> None:
    env: Any = SyncVectorEnv([lambda: env_of(bytes_of(64, 64, 3))])
    with pytest.raises(ConfigError, match=r"expected a single environment.*set envs_per_actor instead"):
        PreparePictures(env, size=[32, 32])
