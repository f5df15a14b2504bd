"""Turns in which actors also wait for each other, so that all give equal shares of a batch. Decisions without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from learner.ingest.fair_turns import FairTurns


class BatchShares(FairTurns):
    """Turns of actors that also wait for each other once they have given their shares of a queue's next batch.

    So no fast actor acts on with the old model while the queue waits for slow ones. A share is the batch divided by the
    number of actors that are online and have stored something. It ends at each multiple of its size, counted from the
    actor's first step on; so rollouts end there too, if a share is whole rollouts of the actor's lanes. Actors wait
    only for one that owes its share. One that is not online, or has stored nothing for ``lost_seconds``, owes nothing
    until it stores again, and the shares of the others grow.
    """

    def __init__(
        self, is_online: Callable[[int], bool], lost_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._is_online, self._lost_seconds, self._clock = is_online, lost_seconds, clock
        self._since: dict[int, float] = {}
        """By actor, when it last stored something, or the last batch was drawn if that came later."""
        self._drawn, self._gave = 0, set[int]()

    def holds(self, actor: int) -> bool:
        return actor in self._gave or super().holds(actor)

    def settle(self, excess: float) -> float:
        steps = super().settle(excess)
        return 1.0 if self._gave else steps  # The next draw lets those go on that have given their shares.

    def note_share(self, actor: int, steps: int, total: int, batch: int) -> None:
        """Note that an actor has stored ``steps``, and ``total`` so far, of batches of ``batch`` steps."""
        self._since[actor] = self._clock()
        n = len(self._since)
        if batch and total * n // batch > (total - steps) * n // batch:
            self._gave.add(actor)

    def settle_shares(self, drawn: int, batch: int, *, lacks_steps: bool) -> None:
        """Let actors go on if more steps were ``drawn`` so far, the ``batch`` is 0, or nobody owes and it is not whole.

        Nobody can know that it is not whole before the trainer has seen all steps and ``lacks_steps``.
        """
        is_drawn, self._drawn = drawn != self._drawn, drawn
        if is_drawn:
            self._since = dict.fromkeys(self._since, self._clock())
        elif lacks_steps and self._gave:
            late, gave = self._clock() - self._lost_seconds, self._gave
            self._since = {a: t for a, t in self._since.items() if self._is_online(a) and (t >= late or a in gave)}
        if is_drawn or not batch or (lacks_steps and self._since.keys() <= self._gave):
            self._freed |= self._gave
            self._gave = set()
