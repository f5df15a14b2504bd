"""Which actors wait for the others, so that all of them give equal shares of a batch. Decisions without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable


class BatchShares:
    """Holds an actor that has given its share of the next batch until the batch is drawn.

    A queue needs all steps of a batch before it draws. Without shares a fast actor would act on with the old model
    while the queue waits for the slow ones. A share is the batch divided by the number of actors that give: those that
    have an open stream and have stored something. Each actor's steps are counted from its first step on, and a share
    ends at each multiple of its size. So if an actor's lanes have room for whole rollouts in it, they end there too.

    An actor is held only while another one owes its share. One that leaves, or stores nothing for ``lost_seconds``,
    owes nothing until it stores again, and the shares of the others grow. If nobody owes and the batch is still not
    whole, nobody is held.

    Args:
        is_online: whether the actor in this row of the actor table has an open stream.
        lost_seconds: how long the others wait for an actor that stores nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self, is_online: Callable[[int], bool], lost_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_online, self._lost_seconds, self._clock = is_online, lost_seconds, clock
        self._awaited_since: dict[int, float] = {}
        """By actor that gives, when it last stored something or the last batch was drawn, whichever came later."""
        self._gave = set[int]()
        """Those that have given their shares since the last batch was drawn."""
        self._drawn = 0
        self._held, self._freed = set[int](), set[int]()

    @property
    def holds_any(self) -> bool:
        """Whether any actor must wait."""
        return bool(self._held)

    def holds(self, actor: int) -> bool:
        """Whether the actor, a row of the actor table, must wait."""
        return actor in self._held

    def take_freed(self) -> set[int]:
        """Return the actors that have been let go since the last call."""
        freed, self._freed = self._freed, set()
        return freed

    def note_batch(self, actor: int, steps: int, total: int, batch_steps: int) -> None:
        """Note that an actor has stored ``steps``, and ``total`` in all; for ``batch_steps`` see ``settle``."""
        self._awaited_since[actor] = self._clock()
        n = len(self._awaited_since)
        if batch_steps and total * n // batch_steps > (total - steps) * n // batch_steps:
            self._gave.add(actor)
            self._held.add(actor)

    def settle(self, drawn: int, batch_steps: int, *, lacks_steps: bool) -> None:
        """Let actors go on once a batch is drawn, or once nobody owes a share of it.

        Args:
            drawn: steps ever drawn.
            batch_steps: steps of a batch; 0 if actors need not wait for each other.
            lacks_steps: whether the trainer has seen all steps and waits for more. Otherwise the batch may be whole,
                and all wait until it is drawn.
        """
        is_drawn, self._drawn = drawn != self._drawn, drawn
        if is_drawn:
            self._gave.clear()
            self._awaited_since = dict.fromkeys(self._awaited_since, self._clock())
        if is_drawn or not batch_steps or (lacks_steps and self._held and not self._find_debtors()):
            self._freed |= self._held
            self._held = set()

    def _find_debtors(self) -> set[int]:
        """The actors that still have to give their shares."""
        late = self._clock() - self._lost_seconds
        for actor, since in list(self._awaited_since.items()):
            if not self._is_online(actor) or (since < late and actor not in self._gave):
                del self._awaited_since[actor]
        return self._awaited_since.keys() - self._gave
