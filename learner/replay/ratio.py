"""The replay ratio in force: trainer and ingest share it, it can change while both run, and a resumed run keeps it."""

from __future__ import annotations

import logging

from common.shared.mapped import fence
from learner.replay.limiter import RatioLimiter
from learner.shared.control import ControlBlock

log = logging.getLogger(__name__)


class LiveRatio:
    """One process' view of the ratio in the control block. A change takes effect on both sides within a second."""

    def __init__(self, control: ControlBlock, configured: RatioLimiter) -> None:
        self._control, self._configured = control, configured
        self._seen, self._limiter = 0, configured

    def limiter(self) -> RatioLimiter:
        """The limiter in force.

        The other process may change the ratio while it is read here. It writes the slot that is not in use, and then
        counts ``ratio_changes`` up. So a slot is read between two looks at that count, and read again if they differ.
        """
        while self._seen != (changes := self._control.ratio_changes):
            found = self._control.ratio_slots[changes % 2]
            limiter = self._configured.since(found.samples_per_insert or None, found.inserted, found.sampled)
            fence()  # The other process counts up before it writes this slot again: the next look sees that.
            if changes == self._control.ratio_changes:
                # Other threads of this process call this too: once ``_seen`` is new, ``_limiter`` must be new as well.
                self._limiter, self._seen = limiter, changes
        return self._limiter

    @property
    def samples_per_insert(self) -> float | None:
        """The ratio in force; None if both sides run free."""
        return self.limiter().samples_per_insert

    def begin(self, inserted: int, sampled: int) -> None:
        """Set the ratio with which a run begins or is resumed, from these counters on.

        A ratio that was set while the run went on stays in force, unless the configuration has changed since.
        """
        configured, control = self._configured.samples_per_insert, self._control
        is_kept = control.ratio_changes and control.ratio_configured == (configured or 0.0)
        in_force = self.samples_per_insert if is_kept else configured
        if in_force != configured:
            log.info("replay ratio %s stays as it was set; configured: %s", *map(format_ratio, (in_force, configured)))
        control.ratio_configured = configured or 0.0
        self._set(in_force, inserted, sampled)

    def change(self, samples_per_insert: float | None, inserted: int, sampled: int) -> None:
        """Set another ratio from these counters on; ``sampled`` is 0 before the first draw since the start."""
        before = self.limiter()
        self._set(samples_per_insert, inserted, sampled or before.sampled_before)
        text = "replay ratio %s instead of %s, from step %d on"
        log.info(text, format_ratio(samples_per_insert), format_ratio(before.samples_per_insert), inserted)

    def _set(self, samples_per_insert: float | None, inserted: int, sampled: int) -> None:
        number = self._control.ratio_changes + 1
        slot = self._control.ratio_slots[number % 2]
        slot.samples_per_insert, slot.inserted, slot.sampled = samples_per_insert or 0.0, inserted, sampled
        fence()
        self._control.ratio_changes = number


def copy_ratio(source: ControlBlock, to: ControlBlock) -> None:
    """Copy the ratio in force to the new control block of a copy of the run, which is then resumed with this ratio."""
    if source.ratio_changes:
        in_force = LiveRatio(source, RatioLimiter(None, 0)).limiter()
        to.ratio_configured = source.ratio_configured
        LiveRatio(to, in_force)._set(in_force.samples_per_insert, 0, 0)


def format_ratio(samples_per_insert: float | None) -> str:
    """A ratio as a configuration file writes it."""
    return "null" if samples_per_insert is None else f"{samples_per_insert:g}"
