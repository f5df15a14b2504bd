from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from common.errors import PluginError, RunDirectoryError
from common.plugins.part_config import EnvConfig
from crossborder.policies.video import filming
from tests.parts import CountingEnv, counting_action

CART_POLE = EnvConfig(target="gymnasium:make", params={"id": "CartPole-v1"})
SHY = f"{__name__}:Shy"


class Shy(CountingEnv):
    """Takes a render mode and gives no picture."""

    def __init__(self, render_mode: str, believes: str | None = None) -> None:
        super().__init__()
        self.render_mode = believes

    def render(self) -> Any:
        return "nothing to see"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            EnvConfig(target="tests.parts:CountingEnv"),
            "takes render_mode 'rgb_array': .* keyword argument 'render_mode'",
        ),
        (EnvConfig(target=SHY), "of render_mode 'rgb_array', .*:Shy is of None"),
        (EnvConfig(target=SHY, params={"believes": "rgb_array"}), "pictures as arrays, .*:Shy renders str"),
    ],
)
def test_an_environment_without_pictures_is_refused(tmp_path: Path, config: EnvConfig, message: str) -> None:
    with pytest.raises(PluginError, match=message), filming(config, tmp_path / "videos", "best"):
        pytest.fail("there is nothing to film")


@pytest.mark.parametrize("missing", ["moviepy", "pygame"])
def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with (
        pytest.raises(PluginError, match=r"pip install 'crossborder\[video\]'"),
        filming(CART_POLE, tmp_path / "videos", "best"),
    ):
        pytest.fail("there is nothing to film with")


def test_a_directory_that_cannot_be_written_is_an_error_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunDirectoryError, match="file/videos: videos cannot be written: Not a directory"),
        filming(CART_POLE, tmp_path / "file" / "videos", "best"),
    ):
        pytest.fail("there is no place for a film")


class Drawn(CountingEnv):
    """Renders pictures of any shape."""

    def __init__(self, render_mode: str, shape: list[int]) -> None:
        super().__init__()
        self.render_mode, self._shape = render_mode, shape

    def render(self) -> Any:
        return np.full(self._shape, 200, np.uint8)


@pytest.mark.parametrize("shape", [[75, 101, 3], [75, 101], [75, 101, 1], [76, 102, 3]])
def test_pictures_of_any_size_and_without_colours_become_a_film_that_every_player_shows(
    tmp_path: Path, shape: list[int]
) -> None:
    config = EnvConfig(target=f"{__name__}:Drawn", params={"shape": shape})
    with filming(config, tmp_path / "videos", "best") as env:
        obs, _ = env.reset(seed=0)
        for _ in range(3):
            obs, *_ = env.step(counting_action(obs))
    (path,) = tmp_path.glob("videos/*.mp4")
    with av.open(str(path)) as film:
        frames = list(film.decode(video=0))
    assert {(frame.height, frame.width, frame.format.name) for frame in frames} == {(76, 102, "yuv420p")}
    assert np.abs(frames[0].to_ndarray(format="rgb24").astype(int) - 200).max() < 5


def test_arrays_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    config = EnvConfig(target=f"{__name__}:Drawn", params={"shape": [2, 8, 8, 3]})
    with pytest.raises(PluginError, match=r"Drawn renders arrays \[2, 8, 8, 3\]"), filming(config, tmp_path, "best"):
        pytest.fail("there is nothing to film")


@pytest.mark.parametrize("bytes_left", [40, 1500], ids=["none", "half"])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_film_for_which_the_disk_has_no_room_is_an_error(tmp_path: Path, bytes_left: int, *, is_last: bool) -> None:
    message = r"videos/best-episode-0.mp4: 21 pictures could not be written as a film: [\d,]+ bytes are free on its"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def film() -> None:
        with filming(CART_POLE, tmp_path / "videos", "best") as env:
            env.reset(seed=0)
            for i in range(20):
                env.step(i % 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, limits[1]))  # Of the program that encodes.
            if not is_last:
                env.reset()

    try:
        with pytest.raises(RunDirectoryError, match=message):
            film()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
