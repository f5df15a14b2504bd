from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from common.process.child import Child
from tests.conftest import PATIENCE, merged, wait_for
from tests.crossborder.sweeps.worth import sign_of_waiting, write_sweep


def start(directory: Path, *words: str, **changes: Any) -> Child:
    """A run with a file of its own, whose output goes to ``log``."""
    write_sweep(directory)
    path = directory / "counting.yaml"
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), changes)))
    run = ["--config", str(path), "--run-dir", str(directory / "run"), *words]
    boot = {"command": "sync-train", "words": run, "log": str(directory / "log")}
    return Child("run", "crossborder.sweeps.sweep_child", boot)


def test_the_output_of_the_run_goes_to_a_file_and_its_exit_code_is_the_childs(tmp_path: Path) -> None:
    child = start(tmp_path, "--set", "trainer.target_score=1000")
    assert child.wait(PATIENCE) == child.end(0) == 10
    assert "the target score 1000 was not reached" in (tmp_path / "log").read_text()


def test_the_run_stops_in_order_when_the_other_end_of_stdin_is_closed(tmp_path: Path) -> None:
    gate = tmp_path / "never"
    child = start(
        tmp_path,
        trainer={"max_opts": 100_000, "eval_interval": 10},
        evaluator={"params": {"gate": str(gate)}},
    )
    wait_for(sign_of_waiting(gate).exists, "the second evaluation")
    child.close_stdin()
    assert child.wait(PATIENCE) == child.end(0) == 143
    meta = json.loads((tmp_path / "run" / "final" / "meta.json").read_text())
    assert meta["opt_steps"] == 20, "where the evaluation was broken off"
