from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.episode_files import read_episode
from crossborder.people import crossborder_teleop
from tests.crossborder.people.test_teleoperating import teleoperated


def write_env(path: Path, *commands: dict[str, Any], **changes: Any) -> Path:
    """A file of nothing but the section ``env``."""
    env = teleoperated(*commands, **changes).model_dump(mode="json", exclude_defaults=True)
    path.write_text(yaml.safe_dump({"env": env}))
    return path


def test_a_person_without_a_learner_records_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, place = write_env(tmp_path / "robot.yaml", {"action": [1.0]}), tmp_path / "new" / "demonstrations"
    words = ["--config", str(config), "--record", str(place), "--episodes", "2", "--set", "env.rate_hz=500"]
    assert crossborder_teleop.main(words) == 0
    assert [read_episode(path)["action"].tolist() for path in place.iterdir()] == [[[1], [0], [0], [0]]] * 2
    assert capsys.readouterr().out.splitlines() == [
        "episode 1: 4 steps, 1 of them by the person, return 2, no success",
        "episode 2: 4 steps, 1 of them by the person, return 2, no success",
        f"2 episodes in {place}",
    ]


def test_ctrl_c_ends_it_with_the_episodes_that_were_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_env(tmp_path / "robot.yaml", rate_hz=20).read_text()
    (tmp_path / "robot.yaml").write_text(text.replace("people:Script", "people:Impatient"))
    words = ["--config", str(tmp_path / "robot.yaml"), "--record", str(tmp_path / "out")]
    assert crossborder_teleop.main(words) == 130
    n_files = len(list((tmp_path / "out").iterdir()))
    assert n_files >= 1
    assert capsys.readouterr().out.splitlines()[-1] == f"{n_files} episodes in {tmp_path / 'out'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: {}", "expected a section env, found agent"),
        ("env: {target: 'gymnasium:make', prams: {}}", "env.prams: unknown key (did you mean 'params'?)"),
        ("env: {target: 'gymnasium:make', params: {id: CartPole-v1}}", "env.wrappers: expected Teleoperate"),
        ("env: {target: gymnasium, params: {id: CartPole-v1}}", "env.wrappers: expected Teleoperate"),
    ],
)
def test_a_wrong_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "robot.yaml").write_text(text)
    words = ["--config", str(tmp_path / "robot.yaml"), "--record", str(tmp_path / "out")]
    assert crossborder_teleop.main(words) == 2
    assert message in capsys.readouterr().err
