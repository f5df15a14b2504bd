"""A run's directory is all that its policy needs: in a fresh process, elsewhere, with the configuration gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
import yaml

from tests.conftest import Command

Start = Callable[..., Command]
CART_POLE: dict[str, Any] = {
    "env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}},
    "agent": {"target": "common.agents.dqn:DQN", "params": {"units": [16]}},
    "trainer": {"max_opts": 200, "warmup_period": 64, "eval_interval": 100},
    "evaluator": {"episodes": 3},
}


@pytest.fixture
def moved(start: Start, tmp_path: Path) -> Path:
    """The directory of a short run, moved away from where it was made."""
    config, made, elsewhere = tmp_path / "cartpole.yaml", tmp_path / "made", tmp_path / "elsewhere"
    config.write_text(yaml.safe_dump(CART_POLE))
    trained = start("sync-train", "--config", str(config), "--run-dir", str(made))
    assert trained.wait() == 0, trained.output()
    config.unlink()
    (made / "config.yaml").unlink()
    elsewhere.mkdir()
    return made.rename(elsewhere / "moved")


def test_the_best_policy_is_scored_and_filmed_where_only_its_directory_is(start: Start, moved: Path) -> None:
    evaluated = start("policy-eval", "--run", "moved", "--best", "--json", "--record-video", cwd=moved.parent)
    assert evaluated.wait() == 0, evaluated.output()

    found = json.loads(evaluated.output().splitlines()[-1])
    meta = json.loads((moved / "best" / "meta.json").read_text())
    assert (found["eval_reward"], found["opt_steps"]) == (meta["score"], meta["opt_steps"]), "the same episodes"

    films = [moved / "videos" / f"best-episode-{i}.mp4" for i in range(3)]
    frames = [imageio_ffmpeg.count_frames_and_secs(str(film))[0] for film in films]
    assert sum(frames) == pytest.approx(3 * found["eval_reward"], abs=3), "one picture a step, give or take one a film"
