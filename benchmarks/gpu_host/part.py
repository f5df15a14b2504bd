"""What all parts of the trial share: their arguments, and how they print results and progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Budget:
    """How long a part may take, on which device, and at which share of its full size.

    Args:
        seconds: after which the part should have ended.
        device: ``cuda``, or ``cpu`` for a rehearsal.
        share: 64 makes a part of a 64th of its size: batches, replays and turns are that much smaller.
    """

    seconds: float
    device: str
    share: int
    _began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds since the part began."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds until the part should have ended, at least 0."""
        return max(0.0, self.seconds - self.elapsed)

    def shrink(self, size: int, least: int = 1) -> int:
        """A size at this share, at least ``least``."""
        return max(least, size // self.share)


def read_arguments(about: str | None, tasks: Iterable[str] = ()) -> tuple[Budget, str]:
    """The budget that the command line gives to a part, and the task that it names, if the part has ``tasks``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names := list(tasks):
        parser.add_argument("task", choices=names)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", type=int, default=1)
    given = parser.parse_args()
    return Budget(given.seconds, given.device, given.share), getattr(given, "task", "")


def tell(text: str) -> None:
    """Print a line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def give(**found: object) -> None:
    """Print a result, a line of JSON."""
    tell(json.dumps(found))
