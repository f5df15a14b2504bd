"""A learner that is killed in its first seconds: the same command starts it again, as a restart policy would."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from common.errors import RunDirectoryError
from learner.shared.control import ControlBlock
from tests.conftest import Command, kill, wait_for
from tests.e2e.test_by_hand import CALM, trains
from tests.forked_children import forked_children

pytestmark = pytest.mark.own_children

MOMENTS = ("shared", "shared/replay", "shared/models", "checkpoints", "run.json")
"""A start makes these in this order; it is killed as soon as each is seen, or when it has come up without making it."""


def changed_at(path: Path) -> int:
    """When a file or directory was made or changed, in nanoseconds; 0 if it is not there."""
    try:
        return path.stat().st_ctime_ns
    except FileNotFoundError:
        return 0


def has_changed(before: dict[Path, int]) -> bool:
    """Whether one of these files was made or changed since then."""
    return any(changed_at(path) not in (0, then) for path, then in before.items())


def test_a_start_that_is_killed_at_any_moment_is_made_up_for_by_the_same_command(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    words = ["--config", str(write_config(trainer={"max_opts": 50})), "--run-dir", str(run_dir), "--resume"]
    for moment in MOMENTS:
        before = {path: changed_at(path) for path in (run_dir / moment, run_dir / "endpoints.json")}
        command = start("learner-server", *words)
        wait_for(partial(has_changed, before), moment)
        kill(command.process.pid)
        command.wait()
    with forked_children():
        last = start("learner-server", *words, "--local-actors", "1")
    assert last.wait() == 0, last.output()
    assert json.loads((run_dir / "final" / "meta.json").read_text())["opt_steps"] == 50


def test_a_second_learner_hears_that_the_directory_is_in_use_before_its_parts_are_looked_at(
    start: Callable[..., Command], write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = str(write_config(**CALM))
    first = start("learner-server", "--config", config)
    wait_for((tmp_path / "run" / "run.json").exists, "the first learner")
    second = start("learner-server", "--config", config, "--set", "agent.target=no.such:Agent")
    assert second.wait() == RunDirectoryError.exit_code, second.output()
    assert "another learner is using this run directory" in second.output()
    wait_for(lambda: trains(tmp_path / "run"), "the first one has come up")
    control = ControlBlock.open(tmp_path / "run" / "shared", writable=False)
    beats = control.trainer_beats
    wait_for(lambda: control.trainer_beats > beats, "the first one goes on")
    first.end()
