"""Whose acknowledgement goes out first while the replay ratio or shares of a batch hold actors back. Without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count

UNKNOWN = -1
"""Stands for all actors whose steps a former ingest process has stored; it owes those steps."""
_ROUNDING = 1e-3
"""A number of steps that is greater than the rounding errors of the sums below."""


class FairTurns:
    """Shares the steps that the trainer draws equally among the holders of tokens whose actors wait for them.

    The replay ratio allows all actors together a number of steps for each step that the trainer draws. Every actor
    owes the steps of its last batch, and each allowed step is split evenly among the holders whose actors still owe.
    The actors of one holder take turns. So a holder that asks for less than an equal share never waits for a holder
    that asks for more, however many actors that holder has, and no allowed step is left unused. This is generalised
    processor sharing (Parekh and Gallager, 1993), computed by virtual time. Virtual time counts the steps that each
    holder has been allowed; an actor's turn comes at the finish time of its batch.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._finish: dict[int, float] = {}
        """By actor."""
        self._last: dict[Hashable, float] = {}
        """By holder, the last finish time of its actors."""
        self._order: list[tuple[float, int, int, Hashable]] = []
        """A heap of finish time, number of the batch, actor and holder. The number keeps actors and holders from being
        compared. An actor that stores again gets another entry; its older entries free nobody."""
        self._numbers = count()
        self._owed = 0.0
        self._freed = set[int]()

    def note_batch(self, actor: int, holder: Hashable, steps: int, excess: float) -> None:
        """Note a batch that was stored.

        Args:
            actor: its row of the actor table.
            holder: who shares the allowed steps with other holders, see ``holder_of``.
            steps: of the batch; a batch of final rows alone has none, and its actor need not wait.
            excess: steps of all actors beyond those that the replay ratio allows, this batch included.
        """
        if not steps or not (excess or self._last):
            return
        self.settle(max(0.0, excess - steps))
        self._owe(actor, holder, steps)
        self.settle(excess)

    def settle(self, excess: float) -> float:
        """Count the steps that the trainer has drawn.

        Args:
            excess: steps of all actors beyond those that the replay ratio allows now.

        Returns:
            Steps that the ratio must allow until the next actor's turn comes; 0 if no actor waits.
        """
        self._work_off(self._owed - excess)
        if excess > self._owed + 1:
            self._owe(UNKNOWN, UNKNOWN, excess - self._owed)
        return len(self._last) * (self._order[0][0] - self._now) if self._last else 0.0

    def holds(self, actor: int) -> bool:
        """Whether the actor must wait for its turn."""
        return actor in self._finish

    def take_freed(self) -> set[int]:
        """Return the actors whose turn has come since the last call."""
        freed, self._freed = self._freed, set()
        return freed

    def _owe(self, actor: int, holder: Hashable, steps: float) -> None:
        finish = self._finish[actor] = self._last[holder] = max(self._now, self._last.get(holder, 0.0)) + steps
        heappush(self._order, (finish, next(self._numbers), actor, holder))
        self._owed += steps

    def _work_off(self, steps: float) -> None:
        """Split ``steps`` evenly among the holders whose actors owe."""
        while self._last and steps > -_ROUNDING:
            first, _, actor, holder = self._order[0]
            part = min(steps / len(self._last), first - self._now)
            steps -= part * len(self._last)
            self._owed -= part * len(self._last)
            self._now += part
            if first - self._now > _ROUNDING:
                return
            heappop(self._order)
            if self._last[holder] <= first:
                del self._last[holder]
            if self._finish.get(actor) == first:  # Otherwise this was an older entry.
                del self._finish[actor]
                self._freed.add(actor)
        if not self._last:
            self._now = self._owed = 0.0
            self._order.clear()


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
