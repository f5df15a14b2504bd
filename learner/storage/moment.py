"""A moment of training, by which models, scores and checkpoints are dated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """A point of training: what a checkpoint was saved at, a record written for, a score earned."""

    opt_steps: int
    samples_total: int
    seconds: float
