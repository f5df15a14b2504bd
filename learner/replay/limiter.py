"""The replay ratio, decided in one place without I/O and enforced on both sides.

The arithmetic is Reverb's ``SampleToInsertRatio`` (arXiv:2102.04736, section 3.4): with
``diff = inserted * samples_per_insert - sampled`` the trainer may draw while ``diff`` is above a floor and actors may
insert while it is below a ceiling. Each side checks before it draws or inserts, and the floor is below the ceiling, so
one side can always go on. Steps count from the warm-up on, or from the moment at which the ratio was changed. Steps
that came or were drawn earlier do not count, so neither side has to catch up after a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from common.config.run_config import RunConfig


@dataclass(frozen=True)
class RatioLimiter:
    """Decisions from two counters.

    Args:
        samples_per_insert: steps drawn per step inserted; None lets both sides run free.
        warmup: steps inserted before the first draw, counted from ``began``.
        error_buffer: draws by which ``diff`` may deviate; None: a tenth of the draws that the warm-up's steps allow.
        inserted_before: steps inserted before the ratio was set; they do not count.
        sampled_before: steps drawn before the ratio was set; they do not count.
        began: steps that count as stored before the replay's first row: above 0 if an earlier replay was lost.
    """

    samples_per_insert: float | None
    warmup: int
    error_buffer: float | None = None
    inserted_before: int = 0
    sampled_before: int = 0
    began: int = 0

    @classmethod
    def of(cls, config: RunConfig, began: int = 0) -> RatioLimiter:
        """The limiter of a run, the same in the trainer and in ingest."""
        ratio, error_buffer = config.replay.samples_per_insert, config.replay.error_buffer
        return cls(ratio, config.trainer.warmup_period, error_buffer, began=began)

    def since(self, samples_per_insert: float | None, inserted: int, sampled: int) -> RatioLimiter:
        """The limiter of another ratio that holds from these counters on: ``diff`` is 0 there."""
        return replace(self, samples_per_insert=samples_per_insert, inserted_before=inserted, sampled_before=sampled)

    def _first(self) -> int:
        """The number of steps that were inserted before steps began to count."""
        return max(self._warm_at(), self.inserted_before)

    def _warm_at(self) -> int:
        """The number of steps inserted at which the warm-up is over."""
        return self.began + self.warmup

    def _error(self) -> float:
        if self.error_buffer is not None:
            return self.error_buffer
        return max(1.0, 0.1 * self.warmup * (self.samples_per_insert or 0.0))

    def may_sample(self, inserted: int, sampled: int) -> bool:
        """Whether the trainer may draw a batch now."""
        if inserted < self._warm_at():
            return False
        if self.samples_per_insert is None:
            return True
        return sampled <= self._due(inserted, self.samples_per_insert) + self._error()

    def draws_between(self, before: int, after: int) -> int:
        """Steps to draw for the steps that were inserted while ``inserted`` went from ``before`` to ``after``."""
        counted = max(after, self._warm_at()) - max(before, self._warm_at())
        return round(counted * (self.samples_per_insert or 0.0))

    def excess(self, inserted: int, sampled: int) -> float:
        """How many more steps were inserted than the ratio allows; while it is above 0, actors wait.

        Args:
            inserted: steps ever inserted.
            sampled: steps ever drawn; 0 before the first draw since the start of a process.
        """
        if self.samples_per_insert is None or inserted <= self._first():
            return 0.0
        draws_behind = self._due(inserted, self.samples_per_insert) - self._error() - max(sampled, self.sampled_before)
        return max(0.0, draws_behind / self.samples_per_insert)

    def draws_for(self, steps: float) -> int:
        """Steps to draw until the ratio allows this many more steps to be inserted."""
        return math.ceil(steps * (self.samples_per_insert or 0.0))

    def _due(self, inserted: int, samples_per_insert: float) -> float:
        """The number of steps drawn at which the ratio is met exactly."""
        return self.sampled_before + (inserted - self._first()) * samples_per_insert
