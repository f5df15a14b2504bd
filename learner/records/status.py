"""Where a run stands, as the terminal shows it and Prometheus scrapes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """Where a run stands at one moment. ``record`` has the newest value of each recorded key, rates among them."""

    name: str
    seconds: float
    opt_steps: int
    max_opts: int
    best_score: float
    target_score: float | None
    inserted: int
    sampled: int
    replay_size: int
    samples_per_insert: float | None
    trainer_wait_seconds: float
    actors_online: int
    return_mean: float
    policy_lag: float
    evaluations_skipped: int
    record: dict[str, float] = field(repr=False)

    @property
    def replay_ratio(self) -> float:
        """Steps drawn per step inserted, since the run began."""
        return self.sampled / self.inserted if self.inserted else 0.0

    def line(self) -> str:
        """The status as one line for a log."""
        best = self.best_score if math.isfinite(self.best_score) else None
        rates = (self.record.get("opt_steps_per_sec", 0.0), self.record.get("samples_per_sec", 0.0))
        return (
            f"{self.seconds:.0f} s, opt step {self.opt_steps}/{self.max_opts}, {rates[0]:.0f} opt/s, "
            f"{rates[1]:.0f} steps/s, {self.actors_online} actors, return {format_return(self.return_mean)}, "
            f"best evaluation {format_return(best)}, replay {self.replay_size} steps, "
            f"ratio {self.replay_ratio:.1f}, policy lag {self.policy_lag:.0f} opt steps"
        )


def format_return(value: float | None) -> str:
    """Format a return or a score: with one decimal, or by its magnitude if it has many digits; None becomes a dash.

    >>> format_return(141.25), format_return(3.4e38)
    ('141.2', '3.4e+38')
    """
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) < 1e9 else f"{value:.4g}"
