from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, free_port


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Sequence[dict[str, Any]]:
    """What two real ranks have found in ``tests.learner.ranks.pair``, by rank; all test processes share one pair."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    told = root / "pair.json"
    with (root / "pair.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(json.dumps(run_pair(tmp_path_factory.mktemp("pair"))))
        found: list[dict[str, Any]] = json.loads(told.read_text())
    return found


def run_pair(directory: Path) -> list[dict[str, Any]]:
    """Run two ranks to their end, and read what each has written."""
    torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    commands = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(2):
            for name, value in {**torchrun, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}.items():
                patch.setitem(os.environ, name, value)
            log = directory / f"{rank}.log"
            commands.append(Command("tests.learner.ranks.pair", str(directory), log=log))
    try:
        for command in commands:
            assert command.wait() == 0, command.output()
    finally:
        for command in commands:
            command.end()
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]
