"""Hosts of which each command is a few lines of Python here, and an ``ssh`` that starts them on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from common.settings import validate
from crossborder.launching.hosts_config import LaunchConfig

# Before the host, the words of a real ssh; after it, the command for the host's shell.
SSH = """#!/bin/sh
for last; do :; done
case "$*" in *" gone "*) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255;; esac
exec sh -c "$last"
"""
# What a host does at a command is in the file of the command's name: its exit code, then "holds" if it runs until it is
# asked to end, or "waits" if it runs until somebody opens the pipe "go".
PYTHON = f"""#!{sys.executable} -S
import json, os, sys
here, name = os.path.dirname(sys.argv[0]), sys.argv[5]
with open(os.path.join(here, "started"), "a") as started:
    started.write(name + "\\n")
code, *holds = open(os.path.join(here, name)).read().split()
if holds == ["waits"]:
    open(os.path.join(here, "go")).close()
elif holds:
    while (byte := os.read(0, 1)) not in (b"", b"!"):
        pass
    with open(os.path.join(here, "ended"), "a") as ended:
        ended.write(name + (" asked" if byte else " alone") + "\\n")
if int(code) not in (0, 143):
    record = {{"level": "CRITICAL", "logger": "x", "message": name + ": the disk is full\\nexit code 4: docs"}}
    sys.stderr.write(json.dumps(record) + "\\n")
print("goodbye")
sys.exit(int(code))
"""


class StandInHosts:
    """A folder with an ``ssh`` for PATH and one stand-in for the Python of all hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("ssh", SSH), ("python", PYTHON)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        os.mkfifo(folder / "go")
        self.does(learner="143 holds", health="0", actors="143 holds")

    def does(self, *, learner: str | None = None, health: str | None = None, actors: str | None = None) -> None:
        """Say what each command does from now on, such as ``143 holds``."""
        for name, life in (("learner-server", learner), ("crossborder-health", health), ("actor-worker", actors)):
            if life is not None:
                (self.folder / name).write_text(life)

    def values(self, *hosts: str) -> dict[str, Any]:
        """The values of a hosts file with these hosts of actors."""
        return {
            "learner": {"host": "gpu", "config": "run.yaml", "run_dir": "run"},
            "actors": [{"host": host} for host in hosts],
            "python": str(self.folder / "python"),
        }

    def config(self, *hosts: str) -> LaunchConfig:
        return validate(LaunchConfig, self.values(*hosts))

    def lines(self, name: str) -> list[str]:
        """Which commands have ``started``, or have ``ended``, in order."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []
