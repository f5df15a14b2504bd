"""The replay ratio in force: shared by trainer and ingest, changed while both run, kept for whoever resumes the run."""

from __future__ import annotations

import logging

from common.config.run_config import MAX_RATIO, MIN_RATIO
from learner.replay.limiter import RatioLimiter
from learner.shared.control import ControlBlock
from learner.shared.mapped import fence

log = logging.getLogger(__name__)


class LiveRatio:
    """One process' view of the ratio in the control block. A change takes effect on both sides within a second.

    Args:
        control: where it is shared.
        configured: the limiter that the configuration asks for.
    """

    def __init__(self, control: ControlBlock, configured: RatioLimiter) -> None:
        self._control, self._configured = control, configured
        self._seen, self._limiter = 0, configured

    def limiter(self) -> RatioLimiter:
        """The limiter in force."""
        while self._seen != (changes := self._control.ratio_changes):
            found = self._control.ratio_slots[changes % 2]
            limiter = self._configured.since(found.samples_per_insert or None, found.inserted, found.sampled)
            fence()  # Whoever wrote this slot again meanwhile had counted up before.
            if changes == self._control.ratio_changes:
                self._limiter, self._seen = limiter, changes  # In this order: several threads look.
        return self._limiter

    @property
    def samples_per_insert(self) -> float | None:
        """The ratio in force; None if both sides run free."""
        return self.limiter().samples_per_insert

    def begin(self, inserted: int, sampled: int) -> None:
        """Start a life of the run at these counters.

        The ratio in force before stays, unless the configuration asks for another than it did then.
        """
        configured, control = self._configured.samples_per_insert, self._control
        in_force = configured
        if control.ratio_changes and control.ratio_configured == (configured or 0.0):
            kept = self.samples_per_insert
            if kept is None or MIN_RATIO <= kept <= MAX_RATIO:  # Release 0.1 took any number above 0.
                in_force = kept
        if in_force != configured:
            log.info("replay ratio %s as it was set before, not %s", shown(in_force), shown(configured))
        control.ratio_configured = configured or 0.0
        self._set(in_force, inserted, sampled)

    def change(self, samples_per_insert: float | None, inserted: int, sampled: int) -> None:
        """Keep another ratio from these counters on; ``sampled`` is 0 before the first draw of this life."""
        before = self.limiter()
        self._set(samples_per_insert, inserted, sampled or before.sampled_before)
        text = "replay ratio %s instead of %s, from item %d on"
        log.info(text, shown(samples_per_insert), shown(before.samples_per_insert), inserted)

    def _set(self, samples_per_insert: float | None, inserted: int, sampled: int) -> None:
        number = self._control.ratio_changes + 1
        slot = self._control.ratio_slots[number % 2]
        slot.samples_per_insert, slot.inserted, slot.sampled = samples_per_insert or 0.0, inserted, sampled
        fence()
        self._control.ratio_changes = number


def shown(samples_per_insert: float | None) -> str:
    """A ratio as a configuration has it."""
    return "null" if samples_per_insert is None else f"{samples_per_insert:g}"
