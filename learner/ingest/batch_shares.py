"""Which actors wait for the others, so that all of them give equal shares of a batch. Decisions without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable


class BatchShares:
    """Holds an actor that has given its share of the next batch until the batch is drawn.

    A queue needs all steps of a batch before it draws. Without shares a fast actor would act on with the old model
    while the queue waits for the slow ones. The share is the batch divided by the number of actors that give: those
    that have an open stream and have stored something. An actor is held only while another one has given less than its
    share. If that one leaves, or stores nothing for ``lost_seconds``, it counts no more until it stores again, so the
    shares of the others grow. If all have given their shares and the batch is still not whole, nobody is held.

    Args:
        is_online: whether the actor in this row of the actor table has an open stream.
        lost_seconds: how long the others wait for an actor that stores nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self, is_online: Callable[[int], bool], lost_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_online, self._lost_seconds, self._clock = is_online, lost_seconds, clock
        self._given: dict[int, float] = {}
        """By actor, the steps that it has stored and no batch has drawn."""
        self._awaited_since: dict[int, float] = {}
        """By actor, when it last stored something, or the batch before was drawn."""
        self._drawn = 0
        self._held = set[int]()
        self._freed = set[int]()

    @property
    def holds_any(self) -> bool:
        """Whether any actor must wait."""
        return bool(self._held)

    def holds(self, actor: int) -> bool:
        """Whether the actor, a row of the actor table, must wait."""
        return actor in self._held

    def take_freed(self) -> set[int]:
        """Return the actors that need not wait any longer since the last call."""
        freed, self._freed = self._freed, set()
        return freed

    def note_batch(self, actor: int, steps: int, batch_steps: int) -> None:
        """Note steps that an actor has stored; ``batch_steps`` is 0 if actors need not wait for each other."""
        self._given[actor] = self._given.get(actor, 0.0) + steps
        self._awaited_since[actor] = self._clock()
        if batch_steps and self._given[actor] >= batch_steps / len(self._given):
            self._held.add(actor)

    def settle(self, drawn: int, batch_steps: int, *, lacks_steps: bool) -> None:
        """Let actors go on once a batch is drawn, or once nobody has to give more of it.

        Args:
            drawn: steps ever drawn.
            batch_steps: of the next batch; 0 if actors need not wait for each other.
            lacks_steps: whether the trainer has seen all steps, and they are too few for the batch. Otherwise the
                shares may be whole already, and everybody waits for the draw.
        """
        new, self._drawn = drawn - self._drawn, drawn
        if new > 0:
            self._draw(new)
        elif batch_steps and not lacks_steps:
            return
        if lacks_steps and self._held:
            self._forget_missing(batch_steps)
        share, given = batch_steps / max(1, len(self._given)), self._given
        nobody_owes = lacks_steps and min(given.values(), default=0.0) >= share
        held = {actor for actor in self._held if batch_steps and not nobody_owes and given.get(actor, 0.0) >= share}
        self._freed |= self._held - held
        self._held = held

    def _draw(self, steps: float) -> None:
        """Take drawn steps evenly from those that actors have given; whoever has given fewer gives all."""
        now, n = self._clock(), len(self._given)
        for place, (actor, given) in enumerate(sorted(self._given.items(), key=lambda item: item[1])):
            part = min(given, steps / (n - place))
            self._given[actor], self._awaited_since[actor] = given - part, now
            steps -= part

    def _forget_missing(self, batch_steps: int) -> None:
        """Forget actors that are away, and those that owe steps and have stored none for too long."""
        share, late = batch_steps / len(self._given), self._clock() - self._lost_seconds
        for actor, given in list(self._given.items()):
            if not self._is_online(actor) or (given < share and self._awaited_since[actor] < late):
                del self._given[actor], self._awaited_since[actor]
