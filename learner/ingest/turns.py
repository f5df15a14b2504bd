"""Whose acknowledgement goes out first while the replay ratio holds actors back. Decisions without I/O and clock."""

from __future__ import annotations

from heapq import heappop, heappush

UNKNOWN = -1
"""Stands for all actors whose steps a former ingest process has stored; it owes those steps."""
_ROUNDING = 1e-3
"""A number of steps that is greater than the rounding errors of the sums below."""


class Turns:
    """Shares the steps that the trainer draws equally among the actors that wait for them.

    The replay ratio allows all actors together a number of steps for each step that the trainer draws. Every actor
    owes the steps of its last batch, and each allowed step is split evenly among the actors that still owe. So an actor
    that asks for less than an equal share never waits for an actor that asks for more, and no allowed step is left
    unused: this is generalised processor sharing (Parekh and Gallager, 1993), computed by virtual time. Virtual time
    counts the steps that each waiting actor has been allowed; an actor's turn comes at its finish time.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._finish: dict[int, float] = {}
        self._order: list[tuple[float, int]] = []
        """A heap of finish times. An actor that stores again gets another entry; its older entries are skipped."""
        self._owed = 0.0
        self._freed = set[int]()

    def note_batch(self, actor: int, steps: int, excess: float) -> None:
        """Note a batch that was stored.

        Args:
            actor: its row of the actor table.
            steps: of the batch; a batch of final rows alone has none, and its actor need not wait.
            excess: steps of all actors beyond those that the replay ratio allows, this batch included.
        """
        if not steps or not (excess or self._finish):
            return
        self.settle(max(0.0, excess - steps))
        self._owe(actor, steps)
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
            self._owe(UNKNOWN, excess - self._owed)
        return len(self._finish) * (self._order[0][0] - self._now) if self._finish else 0.0

    def holds(self, actor: int) -> bool:
        """Whether the actor must wait for its turn."""
        return actor in self._finish

    def take_freed(self) -> set[int]:
        """Return the actors whose turn has come since the last call."""
        freed, self._freed = self._freed, set()
        return freed

    def _owe(self, actor: int, steps: float) -> None:
        finish = self._finish[actor] = max(self._now, self._finish.get(actor, 0.0)) + steps
        heappush(self._order, (finish, actor))
        self._owed += steps

    def _work_off(self, steps: float) -> None:
        """Split ``steps`` evenly among the actors that owe."""
        while self._finish and steps > -_ROUNDING:
            first, actor = self._order[0]
            part = min(steps / len(self._finish), first - self._now)
            steps -= part * len(self._finish)
            self._owed -= part * len(self._finish)
            self._now += part
            if first - self._now > _ROUNDING:
                return
            heappop(self._order)
            if self._finish[actor] <= first:  # Otherwise this was an older entry.
                del self._finish[actor]
                self._freed.add(actor)
        if not self._finish:
            self._now = self._owed = 0.0
            self._order.clear()
