"""A learner and its robots as processes of this host, each with its own log file."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

CONFIG: Final = Path(__file__).with_name("robot.yaml")
HOST: Final = "127.0.0.1"
BIN: Final = Path(sys.executable).parent
JOIN_SECONDS: Final = 60.0


class Fleet:
    """Processes that end with this object.

    Args:
        folder: gets ``run/`` of the learner and a log file of each process.
        settings: values that replace those of ``robot.yaml``, by their dotted keys.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._settings = folder, settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self.run_dir = folder / "run"
        self.port = free_port()
        """Where the learner listens."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=10)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to ``NAME.log``."""
        with self.log(name).open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        self._processes.append(process)
        return process

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self._folder / f"{name}.log"

    def start_learner(self) -> subprocess.Popen[bytes]:
        """Start the learner."""
        settings = {"metrics.listen": "null", **self._settings}
        options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        where = ["--config", str(CONFIG), "--run-dir", str(self.run_dir), "--listen", f"{HOST}:{self.port}"]
        return self.start("learner", [str(BIN / "learner-server"), *where, *options])

    def start_robots(self, *numbers: int, port: int | None = None) -> list[subprocess.Popen[bytes]]:
        """Start robots together, and wait until all have joined; a number decides which ``overrides`` apply.

        Raises:
            TimeoutError: a robot has not joined in time; its log says why.
        """
        address = f"{HOST}:{self.port if port is None else port}"
        names = [f"robot-{number}" for number in numbers]
        joins = [self._count_joins(name) for name in names]
        robots = [
            self.start(name, [str(BIN / "actor-worker"), "--learner", address, "--id", str(number)])
            for number, name in zip(numbers, names, strict=True)
        ]
        until = time.monotonic() + JOIN_SECONDS
        for name, before, robot in zip(names, joins, robots, strict=True):
            while self._count_joins(name) == before:
                if time.monotonic() > until or robot.poll() is not None:
                    logs = f"{self.log(name)} and {self.log('learner')}"
                    raise TimeoutError(f"{name} has not joined the learner; see {logs}")
                time.sleep(0.1)
        return robots

    def _count_joins(self, name: str) -> int:
        log = self.log(name)
        return log.read_text().count("joined run") if log.exists() else 0


def free_port() -> int:
    """A port of this host on which no process listens."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
