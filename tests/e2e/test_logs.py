"""Logs for machines: whatever a learner and its children say is one object per line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Command


def test_every_line_of_a_learner_and_its_children_is_an_object_also_when_it_fails(
    write_config: Callable[..., Path], start: Callable[..., Command]
) -> None:
    config = write_config(env={"target": "tests.parts:NanEnv"})
    words = ("--config", str(config), "--local-actors", "1", "--log-format", "json")
    learner = start("learner-server", *words)
    assert learner.wait() == 9, learner.output()
    entries = [json.loads(line) for line in learner.output().splitlines()]  # It says nothing on stdout.
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in entries)
    joined = next(entry for entry in entries if entry["logger"] == "ingest.learner.ingest.service")
    assert joined["message"].startswith("actor 0 joined from")
    assert (entries[-1]["level"], entries[-1]["logger"]) == ("CRITICAL", "common.process.command")
    assert "expected finite values, found nan" in entries[-1]["message"]
