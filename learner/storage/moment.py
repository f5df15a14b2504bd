"""A moment of training, which dates scores, records, saved policies and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """A moment of training, counted over all lives of the run."""

    opt_steps: int
    samples_total: int
    """Steps ever stored in the replay, or self-contained items."""
    seconds: float
    samples_elsewhere: int = 0
    """Steps that the other ranks have stored."""
