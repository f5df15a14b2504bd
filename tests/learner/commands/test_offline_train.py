from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from learner.commands.offline_train import main
from tests.conftest import Command
from tests.learner.loop.test_offline import IN_TURNS, run_to_its_end


def test_offline_train_is_a_command_with_a_summary(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    source, config = (
        str(run_to_its_end(tmp_path / "earlier")),
        str(write_config(agent=IN_TURNS, trainer={"max_opts": 50})),
    )
    command = start("offline-train", "--config", config, "--dataset", source)
    assert command.wait() == 0, command.output()
    assert f"loaded 572 rows from {source}" in command.output()
    assert "all opt steps were taken" in command.output()
    assert "\nopt_steps/sec, duration\n" in command.output(), "a dataset brings no samples"
    wrong = start("offline-train", "--config", config, "--dataset", str(tmp_path), "--run-dir", "unused")
    assert wrong.wait() == 14
    assert "offline-train: dataset: expected minari:ID" in wrong.output()


def test_the_check_opens_the_dataset_that_the_command_would_learn_from(
    write_config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(run_to_its_end(tmp_path / "earlier"))
    for dataset, changes, code, told in [
        (source, {}, 0, "good. Rows: obs <f4 [3]"),
        ("data/nowhere", {}, 14, "found 'data/nowhere', which does not exist"),
        (source, {"env": {"target": "gymnasium:make", "params": {"id": "CartPole-v1"}}}, 8, "expects obs <f4 [4]"),
    ]:
        config = str(write_config(agent={"target": "DQN"}, **changes))
        assert main(["--config", config, "--dataset", dataset, "--check"]) == code
        assert told in "".join(capsys.readouterr())
