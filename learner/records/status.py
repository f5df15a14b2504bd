"""The present figures of a run, for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Status:
    """The present figures of a run. Rates are in ``record``, the newest value of each recorded key."""

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
        """Items drawn per item inserted so far."""
        return self.sampled / self.inserted if self.inserted else 0.0

    def line(self) -> str:
        """All of it in one plain line."""
        rates = (self.record.get("opt_steps_per_sec", 0.0), self.record.get("samples_per_sec", 0.0))
        return (
            f"{self.seconds:.0f} s, opt step {self.opt_steps}/{self.max_opts}, {rates[0]:.0f} opt/s, "
            f"{rates[1]:.0f} items/s, {self.actors_online} actors, return {short(self.return_mean)}, "
            f"best evaluation {short(self.best_score)}, replay {self.replay_size} items, "
            f"ratio {self.replay_ratio:.1f}, policy lag {self.policy_lag:.0f} opt steps"
        )


def short(value: float | None) -> str:
    """A return or score for people: one decimal, or its magnitude where an actor reports one of 38 digits.

    >>> short(141.25), short(3.4e38)
    ('141.2', '3.4e+38')
    """
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) < 1e9 else f"{value:.4g}"
