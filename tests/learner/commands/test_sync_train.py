from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from common.errors import EnvHungError
from tests.conftest import Command, wait_for
from tests.learner.loop.test_in_turns import IN_TURNS


def test_sync_train_is_a_command_with_a_summary(start: Callable[..., Command], tmp_path: Path) -> None:
    few = ["trainer.target_score=1", "trainer.warmup_period=100", "trainer.eval_interval=100", "evaluator.episodes=2"]
    options = [word for value in few for word in ("--set", value)]
    command = start("sync-train", "--config", "configs/cartpole.yaml", "--run-dir", str(tmp_path / "run"), *options)
    assert command.wait() == 0, command.output()
    assert "the target score was reached" in command.output()
    assert "samples/sec, opt_steps/sec, duration" in command.output()
    assert (tmp_path / "run" / "learning_curve.png").exists()


def test_the_command_ends_although_its_environment_has_left_a_thread_behind(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_config(agent=IN_TURNS, env={"target": "tests.parts:LingeringEnv"}, trainer={"max_opts": 10})
    command = start("sync-train", "--config", str(path), "--run-dir", str(tmp_path / "run"))
    assert command.wait() == 0, command.output()
    assert "the thread client" in command.output()
    assert "it ends without that" in command.output()


def test_a_signal_ends_training_whose_environment_does_not_return_and_the_run_can_be_resumed(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    env = {"target": "tests.parts:HangingEnv", "params": {"marker": str(tmp_path / "hung")}, "timeout_seconds": 1.0}
    trainer = {"max_opts": 1000, "checkpoint_seconds": 0.01, "eval_interval": 0}
    path = write_config(agent=IN_TURNS, env=env, trainer=trainer)
    words = ("sync-train", "--config", str(path), "--run-dir", str(tmp_path / "run"), "--resume")
    command = start(*words)
    wait_for((tmp_path / "hung").exists, "the environment hangs")
    command.signal(signal.SIGTERM)
    assert command.wait() == EnvHungError.exit_code, command.output()
    assert "in fail" in command.output(), "the stack names the place"
    assert "sync-train: an environment has not returned within env.timeout_seconds" in command.output()
    assert start(*words).wait() == 0
