from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Command


def test_sync_train_is_a_command_with_a_summary(start: Callable[..., Command], tmp_path: Path) -> None:
    few = ["trainer.target_score=1", "trainer.warmup_period=100", "trainer.eval_interval=100", "evaluator.episodes=2"]
    options = [word for value in few for word in ("--set", value)]
    command = start("sync-train", "--config", "configs/cartpole.yaml", "--run-dir", str(tmp_path / "run"), *options)
    assert command.wait() == 0, command.output()
    assert "the target score was reached" in command.output()
    assert "samples/sec, opt_steps/sec, duration" in command.output()
    assert (tmp_path / "run" / "learning_curve.png").exists()
