"""Turns in which actors also wait for each other, so that all give equal shares of a batch. Decisions without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from learner.ingest.fair_turns import FairTurns


class BatchShares(FairTurns):
    """Turns of actors that also wait for each other once they have given their shares of a queue's next batch.

    So no fast actor acts on with the old model while the queue waits for slow ones. A share is the batch divided by the
    number of actors that give. It ends at each multiple of its size, counted from the actor's first step on, as
    rollouts do if a share is whole rollouts of the actor's lanes. An actor gives from its first batch on. It owes and
    gives nothing once it is not online, or nobody has stored anything for ``lost_seconds``, until it stores again.
    """

    def __init__(
        self, is_online: Callable[[int], bool], lost_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._is_online, self._lost_seconds, self._clock = is_online, lost_seconds, clock
        self._giving, self._gave = set[int](), set[int]()  # Those that give; those that gave their shares and wait.
        self._drawn, self._stored_at = 0, 0.0

    def holds(self, actor: int) -> bool:
        return actor in self._gave or super().holds(actor)

    def settle(self, excess: float) -> float:
        steps = super().settle(excess)
        return 1.0 if self._gave else steps  # The next draw lets those go on that have given their shares.

    def note_share(self, actor: int, steps: int, total: int, batch: int, drawn: int) -> None:
        """Note that an actor stored ``steps``, and ``total`` so far, of which batches of ``batch`` steps are drawn."""
        self.settle_shares(batch, drawn)
        self._stored_at = self._clock()
        self._giving.add(actor)
        if batch and total * len(self._giving) // batch > (total - steps) * len(self._giving) // batch:
            self._gave.add(actor)

    def settle_shares(self, batch: int, drawn: int, *, lacks_steps: bool = False) -> None:
        """Let actors go on if more was ``drawn``, ``batch`` is 0, or the trainer ``lacks_steps`` that nobody owes."""
        if lacks_steps and self._gave:
            is_late = self._clock() > self._stored_at + self._lost_seconds
            self._giving = {a for a in self._giving if a in self._gave or (self._is_online(a) and not is_late)}
        if drawn != self._drawn or not batch or (lacks_steps and self._giving <= self._gave):
            self._freed |= self._gave
            self._gave, self._drawn = set(), drawn
