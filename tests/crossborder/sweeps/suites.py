"""Suites of runs that take a moment, whose score is a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from common.config.nested import read_yaml
from common.settings import validate
from crossborder.sweeps.suite_config import SuiteConfig
from tests.crossborder.sweeps.worth import WORTH, write_sweep


def case(agent: str, task: str, worth: float, **fixed: Any) -> dict[str, Any]:
    """An agent that scores 30 times ``worth`` in a task."""
    return {"agent": agent, "task": task, "config": "counting.yaml", "fixed": {WORTH: worth, **fixed}}


def write_suite(directory: Path, **changes: Any) -> Path:
    """Write a suite's file: a good agent that scores 90 and 60, and a bad one that scores 30 and 0, in two tasks."""
    write_sweep(directory)
    suite = {
        "seeds": [0, 1],
        "tasks": {"easy": [0, 90], "hard": [0, 60]},
        "cases": [
            case("good", "easy", 3.0),
            case("good", "hard", 2.0),
            case("bad", "easy", 1.0),
            case("bad", "hard", 0.0),
        ],
        **changes,
    }
    path = directory / "tiny.yaml"
    path.write_text(yaml.safe_dump(suite))
    return path


def make_suite(directory: Path, **changes: Any) -> SuiteConfig:
    """The suite of ``write_suite``."""
    return validate(SuiteConfig, read_yaml(write_suite(directory, **changes)))
