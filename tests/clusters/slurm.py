"""A SLURM cluster of one node, this machine, in a network namespace: slurmctld, slurmd and munged from packages."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.clusters.namespace import Namespace, run
from tests.conftest import ROOT, wait_for

PROGRAMS: Final = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
ADDRESS: Final = "10.79.0.1"
"""Of a device that nothing is connected to. Without one, glibc finds no addresses of names."""


class Slurm:
    """Use as a context manager.

    Args:
        folder: for states and logs; it must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._stack = ExitStack()

    def __enter__(self) -> Slurm:
        self._folder.chmod(0o755)  # munged lets nobody in through a closed folder.
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        settings = (ROOT / "tests/clusters/slurm.conf").read_text().replace("FOLDER", str(self._folder))
        (self._folder / "slurm.conf").write_text(settings)
        # slurmd asks for cgroups even where no setting uses them.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        with self._stack as stack:
            self._namespace = Namespace(f"cl{os.getpid() % 1_000_000}")
            stack.callback(self._namespace.close)
            self._namespace.add_bridge(ADDRESS)
            files = {"key": key, **{name: self._folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}}
            words = [f"--{name}{'' if name == 'socket' else '-file'}={path}" for name, path in files.items()]
            self._start(stack, "munged", "--force", "--foreground", *words)
            wait_for(files["socket"].exists, "munged", 20.0)
            self._start(stack, "slurmctld", "-D")
            self._start(stack, "slurmd", "-D", "-N", "localhost")
            wait_for(lambda: "idle" in self.ask("sinfo", "--noheader"), "an idle node", 60.0)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack, *words: str) -> None:
        with (self._folder / f"{words[0]}.out").open("wb") as log:
            daemon = subprocess.Popen(
                [*self._namespace.prefix, *words], env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        stack.callback(daemon.wait, 10)
        stack.callback(daemon.kill)

    def ask(self, *words: str, **variables: str) -> str:
        """What a command of SLURM prints, with variables in its environment; empty if the command fails."""
        setting = [f"{name}={value}" for name, value in {**_conf(self._environment), **variables}.items()]
        return run(*self._namespace.prefix, "env", *setting, *words, check=False).stdout.strip()

    def submit(self, script: str, *options: str, **variables: str) -> str:
        """Submit a script; the number of its job."""
        number = self.ask("sbatch", "--parsable", *options, script, **variables)
        assert number.isdecimal(), (script, number)
        return number

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING."""
        return self.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")


def _conf(environment: Mapping[str, str]) -> dict[str, str]:
    return {"SLURM_CONF": environment["SLURM_CONF"]}
