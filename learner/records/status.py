"""The status of a run, as the terminal and the log show it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """The status of a run at one moment. ``record`` has the newest value of each recorded key."""

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
    actors_online: int
    return_mean: float
    policy_lag: float
    record: dict[str, float] = field(repr=False)

    @property
    def replay_ratio(self) -> float:
        """Steps drawn per step inserted, since the run began."""
        return self.sampled / self.inserted if self.inserted else 0.0

    def rates_since(self, before: Status) -> tuple[float, float]:
        """Opt steps and stored steps per second since an earlier status; 0 if no time has passed.

        The rates of a record are of no use here: between two opt steps a record may find no new batch, or a large one.
        """
        seconds = self.seconds - before.seconds
        if seconds <= 0:
            return 0.0, 0.0
        return (self.opt_steps - before.opt_steps) / seconds, (self.inserted - before.inserted) / seconds

    def line(self, before: Status) -> str:
        """The status as one line for a log, with the rates since the earlier status ``before``."""
        best, rates = self.best_score if math.isfinite(self.best_score) else None, self.rates_since(before)
        return (
            f"{self.seconds:.0f} s, opt step {self.opt_steps}/{self.max_opts}, {format_rate(rates[0])} opt/s, "
            f"{format_rate(rates[1])} steps/s, {self.actors_online} actors, return {format_return(self.return_mean)}, "
            f"best evaluation {format_return(best)}, replay {self.replay_size} steps, "
            f"ratio {self.replay_ratio:.1f}, policy lag {self.policy_lag:.0f} opt steps"
        )


def format_rate(value: float) -> str:
    """Format a rate: below 10 with a decimal, since PPO and IMPALA make few opt steps per second, and 0.4 is not 0.

    >>> format_rate(0.0), format_rate(0.4), format_rate(1300.2)
    ('0', '0.4', '1300')
    """
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def format_return(value: float | None) -> str:
    """Format a return or a score: with more decimals the smaller it is; None becomes a dash.

    >>> format_return(141.25), format_return(0.96), format_return(3.4e38)
    ('141.2', '0.96', '3.4e+38')
    """
    if value is None:
        return "-"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 1e9 else f"{value:.4g}"
