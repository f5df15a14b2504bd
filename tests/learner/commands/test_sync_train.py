from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Command


def test_sync_train_is_a_command_with_a_summary(start: Callable[..., Command], tmp_path: Path) -> None:
    arguments = ("--run-dir", str(tmp_path / "run"), "--set", "trainer.target_score=60")
    command = start("sync-train", "--config", "configs/cartpole.yaml", *arguments)
    assert command.wait() == 0, command.output()
    assert "the target score was reached" in command.output()
    assert "samples/sec, opt_steps/sec, duration" in command.output()
    assert (tmp_path / "run" / "learning_curve.png").exists()
