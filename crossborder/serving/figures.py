"""What an acting service counts while it serves; ``serving_metrics`` shows it."""

from __future__ import annotations

from collections import Counter
from typing import Final

from learner.ingest.refusals import BucketCounts

REFUSALS: Final = ("bad_message", "session_lost", "over_limit")
"""Why requests are refused: the names of the errors on the wire."""
_SECONDS: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1)


class Figures:
    """Counters of the sessions from the start of the service. Only the event loop's thread writes them."""

    def __init__(self) -> None:
        self.opened = self.resumed = self.expired = 0
        self.refused = Counter(dict.fromkeys(REFUSALS, 0))


class PolicyFigures:
    """Counters of one policy from the start of the service. Only the event loop's thread writes them."""

    def __init__(self) -> None:
        self.actions = self.repeated = self.episodes = 0
        """Actions that lanes got, steps that came again, and episodes that ended."""
        self.taken_up = self.not_taken_up = 0
        """Further policies that appeared in the place of the one that acts."""
        self.return_sum = 0.0
        """Of the episodes that ended."""
        self.batch_lanes = BucketCounts([2**n for n in range(13)])
        self.wait_seconds = BucketCounts(_SECONDS)
        self.answer_seconds = BucketCounts(_SECONDS)
        """From the moment when a step was read until its action was chosen."""
