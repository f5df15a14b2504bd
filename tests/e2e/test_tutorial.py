"""The tutorial does what it says: its files are written and its commands run as they stand, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command
from tests.e2e.test_resume import kept

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
STEP = re.compile(
    r"Save\s+(?:it|this)\s+as\s+`(?P<file>[\w.]+)`.*?```\w+\n(?P<content>.*?)```|^ {4}(?P<command>(?!pip )\S[^\n]*)$",
    re.MULTILINE | re.DOTALL,
)
"""A file to save, or a command to run; packages are installed already."""
FREE_PORTS = """
server: {listen: "127.0.0.1:0"}
metrics: {listen: '127.0.0.1:0'}
"""
"""Added to the configuration, since other tests use the usual ports at the same time."""
FORKED = ("learner-server --resume", "learner-server --config docking.yaml", "sync-train", "policy-")
"""The commands that train, score and export are forked; the shell runs those before and after them."""
FURTHER = 50
"""Opt steps that the resumed run takes."""
SECONDS = 500


def sooner(command: str, run_dir: Path) -> tuple[str, ...]:
    """What a command is given besides, so that it ends sooner; the run with actors goes all the way to its target."""
    if command.startswith("sync-train"):
        return "--set", "trainer.target_score=-20"
    if command.startswith("learner-server --resume"):
        return "--set", f"trainer.max_opts={kept(run_dir) + FURTHER}"
    return ()


@pytest.mark.timeout(800)
def test_its_files_and_commands_lead_to_a_policy_that_docks(start: Callable[..., Command], tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    files: list[str] = []
    output: dict[str, str] = {}
    for step in STEP.finditer(PAGE):
        if step["file"]:
            files.append(step["file"])
            content = step["content"] + (FREE_PORTS if step["file"].endswith(".yaml") else "")
            (tmp_path / step["file"]).write_text(content)
            continue
        if step["command"].startswith(FORKED):
            name, *words = shlex.split(step["command"])
            forked = start(name, *words, *sooner(step["command"], tmp_path / "runs" / "second"), cwd=tmp_path)
            assert forked.wait(SECONDS) == 0, f"{step['command']}:\n{forked.output()}"
            output[step["command"]] = forked.output()
            continue
        done = subprocess.run(
            ["/bin/bash", "-c", step["command"]],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
        output[step["command"]] = done.stdout
        assert done.returncode == 0, f"{step['command']}:\n{done.stdout}"
    assert files == ["docking.py", "test_docking.py", "docking.yaml", "steer.py"]
    assert output["python steer.py"] in ("docked\n", "drifted away\n"), "one episode, in which a good policy may fail"
    (score,) = re.findall(r"^score: (\S+)$", "".join(output.values()), re.MULTILINE)
    assert float(score) > 0, "random actions score -120, and staying where one is as much"
