"""A clock of which tests say what time it is."""

from __future__ import annotations


class Clock:
    """Stands at ``now``, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
