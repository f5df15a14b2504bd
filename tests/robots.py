"""A robot that writes down what it is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from common.data import Array
from tests.parts import CountingEnv


class Robot(CountingEnv):
    """Appends ``reset``, ``step`` and ``halt`` to a file, a line for each call.

    Args:
        log: the file.
        fails_at: the step that raises; 0: none.
    """

    def __init__(self, log: str, fails_at: int = 0) -> None:
        super().__init__()
        self._log, self._fails_at = Path(log), fails_at

    def _write(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line} {os.getpid()}\n")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._write("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._write("step")
        if self._step == self._fails_at:
            raise ValueError("the arm is stuck")
        return super().step(action)

    def halt(self) -> None:
        self._write("halt")


def told(log: Path, pid: int | None = None) -> list[str]:
    """What the robot was told, in order; by one process alone if ``pid`` names it."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [what for what, by in lines if pid in (None, int(by))]
