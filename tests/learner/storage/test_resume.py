"""What the earlier lives of a run left is read once, and goes back to the parts it came from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config.run_config import RunConfig, dump_config
from common.errors import CheckpointError, ConfigError
from common.interfaces import Agent
from common.settings import validate
from learner.replay.recovery import Watermark
from learner.storage.checkpoint import Checkpoints, Saves
from learner.storage.resume import Resumable, ResumePoint
from learner.storage.training_state import Moment, StateFiles
from tests.conftest import counting_config, merged
from tests.learner.storage.test_checkpointer import Scene


def files_in(run_dir: Path) -> StateFiles:
    return StateFiles(run_dir / "checkpoints", {"run_id": "run"}, keep=3, saves=Saves())


@pytest.fixture
def ended(tmp_path: Path) -> Scene:
    """A run that took one opt step and a checkpoint."""
    (tmp_path / "config.yaml").write_text(dump_config(counting_config(tmp_path)))
    scene = Scene(tmp_path, files_in(tmp_path), seconds=None)
    scene.step(at=1e9)
    scene.finish()
    return scene


def test_the_moment_and_the_watermark_are_those_of_the_newest_checkpoint(ended: Scene, tmp_path: Path) -> None:
    earlier = ResumePoint.read(tmp_path, "run")
    assert earlier.moment == Moment(1, 64, 1e9)
    rows = ended.memory.committed
    assert earlier.watermark == Watermark(0, rows, 64, 1, [(1, 1, rows)])


def test_the_parts_go_on_as_if_the_run_had_never_ended(ended: Scene, tmp_path: Path) -> None:
    expected, torch_expected = ended.buffer.batch(16)["obs"].tolist(), torch.rand(4).tolist()
    again = Scene(tmp_path, files_in(tmp_path))
    parts: dict[str, Resumable] = {"buffer": again.buffer, "window": again.window}
    ResumePoint.read(tmp_path, "run").restore(again.agent, parts, "cpu")
    assert torch.rand(4).tolist() == torch_expected
    assert torch.equal(again.agent.table, ended.agent.table)
    assert again.buffer.batch(16)["obs"].tolist() == expected
    assert again.buffer.sampled == ended.buffer.sampled


def test_a_part_that_the_checkpoint_does_not_have_stays_as_it_is(ended: Scene, tmp_path: Path) -> None:
    again = Scene(tmp_path, files_in(tmp_path))
    ResumePoint.read(tmp_path, "run").restore(again.agent, {"acting": again.buffer}, "cpu")
    assert again.buffer.sampled == 0


def save_best(run: Path, config: RunConfig, agent: Agent, score: float) -> None:
    saving = Checkpoints(run, config.actor_part(), "run")
    saving.save("best", agent, opt_steps=1, score=score)


def test_the_best_score_is_that_of_the_best_policy_also_if_it_came_after_the_checkpoint(
    ended: Scene, tmp_path: Path
) -> None:
    earlier, config = ResumePoint.read(tmp_path, "run"), counting_config(tmp_path)
    assert earlier.take_best_score(config) == -math.inf, "there is no best policy"
    save_best(tmp_path, config, ended.agent, 7.0)
    assert earlier.take_best_score(config) == 7.0
    more_episodes = counting_config(tmp_path, evaluator={"episodes": 50, "process": "child"})
    assert earlier.take_best_score(more_episodes) == 7.0, "the same return, measured more exactly"


@pytest.mark.parametrize("file", ["meta.json", "model.safetensors"])
def test_a_damaged_best_policy_is_kept_and_named_and_the_best_score_begins_anew(
    file: str, ended: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, config = ResumePoint.read(tmp_path, "run"), counting_config(tmp_path)
    for name in ("best-damaged", "best-damaged-2"):
        save_best(tmp_path, config, ended.agent, 7.0)
        (tmp_path / "best" / file).write_bytes(b"\xf9 torn")
        assert earlier.take_best_score(config) == -math.inf
        assert (tmp_path / name / file).read_bytes() == b"\xf9 torn"
        assert f"best/ is damaged: it is kept as {name}/, and the best score begins anew" in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"env": {"eval_params": {"length": 20}}},
        {"env": {"params": {"length": 20}}},
        {"env": {"wrappers": [{"target": "gymnasium.wrappers:ClipReward"}]}},
        {"evaluator": {"max_steps": 3}},
    ],
)
def test_a_policy_that_was_scored_otherwise_keeps_its_score_under_another_name(
    changes: dict[str, Any], ended: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, config = ResumePoint.read(tmp_path, "run"), counting_config(tmp_path)
    changed = counting_config(tmp_path, **changes)
    for name in ("best-1", "best-1-2"):
        save_best(tmp_path, config, ended.agent, 7.0)
        assert earlier.take_best_score(changed) == -math.inf
        assert not (tmp_path / "best").exists()
        assert json.loads((tmp_path / name / "meta.json").read_text())["score"] == 7.0
    assert (
        "best/ has the score 7.00, but evaluations differ now (env or evaluator): it is kept as best-1/" in caplog.text
    )


def test_another_agent_is_refused(ended: Scene, tmp_path: Path) -> None:
    earlier, config = ResumePoint.read(tmp_path, "run"), counting_config(tmp_path)
    earlier.require_same_agent(config)
    other = validate(RunConfig, merged(config.model_dump(mode="json"), {"agent": {"target": "tests.parts:Other"}}))
    with pytest.raises(ConfigError, match=r"agent\.target: expected tests\.parts:CheckingAgent, .*found tests\.parts:"):
        earlier.require_same_agent(other)


def test_the_room_of_the_replay_is_known_unless_the_replay_is_missing(ended: Scene, tmp_path: Path) -> None:
    assert ResumePoint.read(tmp_path, "run").saved_capacity() is None
    (tmp_path / "shared").mkdir()
    (tmp_path / "replay").rename(tmp_path / "shared" / "replay")
    assert ResumePoint.read(tmp_path, "run").saved_capacity() == 100
    ended.memory.header.committed = -1  # As a power cut may leave it; ``make_whole`` mends it later.
    assert ResumePoint.read(tmp_path, "run").saved_capacity() == 100


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(counting_config(tmp_path)))
    with pytest.raises(CheckpointError, match="expected a state of training, found none"):
        ResumePoint.read(tmp_path, "run")
