from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import PluginError, RunDirectoryError
from common.plugins.part_config import EnvConfig
from learner.evaluation.video import filming
from tests.parts import CountingEnv

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
