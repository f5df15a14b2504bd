from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Command
from tests.learner.loop.test_offline import IN_TURNS, earlier


def test_offline_train_is_a_command_with_a_summary(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    source, config = str(earlier(tmp_path)), str(write_config(agent=IN_TURNS, trainer={"max_opts": 50}))
    command = start("offline-train", "--config", config, "--dataset", source)
    assert command.wait() == 0, command.output()
    assert f"loaded 572 rows from {source}" in command.output()
    assert "all opt steps were taken" in command.output()
    wrong = start("offline-train", "--config", config, "--dataset", str(tmp_path), "--run-dir", "unused")
    assert wrong.wait() == 14
    assert "offline-train: dataset: expected minari:ID" in wrong.output()
