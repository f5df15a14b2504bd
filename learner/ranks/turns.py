"""How the ranks agree on each opt step and on the end of training.

In each turn of its loop a rank takes part in exactly one exchange. In every exchange each rank says whether it has
drawn its share of a batch. If all ranks have drawn, all learn from the batch; otherwise none does. So no rank begins an
opt step that another rank does not take, even if the agents and the replays of the ranks treat their rows differently.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from common.errors import PluginError, RankLostError
from learner.ranks.group import Group

GOES_ON: Final = 0
FAILED: Final = -1
"""A rank that has failed sends this in the place of an outcome."""
BUSY_SECONDS: Final = 1.0
"""Seconds between two answers of a rank that is busy with other work than opt steps."""


class Said(NamedTuple):
    """The message of a rank in an exchange."""

    has_drawn: float
    """1: it has its share of a batch, and can learn from it."""
    outcome: float
    """0: it goes on; above 0: the number of its reason to end training; below 0: it has failed."""
    opt_steps: float
    checksum: float
    """That of its model after some opt steps, see ``compute_checksum`` in ``learner.ranks.agent_state``; else 0."""
    least: float
    """The least probability by which the weights of its draws are compared; infinity where draws have no weights."""
    inserted: float
    """Steps ever stored in its shard."""
    actors: float
    """Actors that hold an id at this rank."""


class Measured(NamedTuple):
    """The figures of a rank; see ``Said``."""

    opt_steps: int
    checksum: int
    inserted: int
    actors: int


class Turns:
    """The exchanges of one rank.

    Args:
        group: of all ranks.
        measure: the present figures of this rank.
        show_life: called several times a second while this rank waits for others.
    """

    def __init__(self, group: Group, measure: Callable[[], Measured], show_life: Callable[[], None]) -> None:
        self._group, self._measure, self._show_life = group, measure, show_life
        self._rank = group.place.rank
        self._outcome = GOES_ON
        self._has_asked = False
        self._asked_at = time.monotonic()
        self.heard: Sequence[Said] = ()
        """The messages of all ranks in the last exchange, in the order of ranks."""
        self.ending: int | None = None
        """The reason to end training of the first rank that has one; None while training goes on."""
        self.is_ready = False
        """Whether this rank had drawn in the last exchange."""

    def begin(self, outcome: int) -> None:
        """Begin a turn, with this rank's reason to end training (``Said.outcome``); 0: it goes on."""
        self._outcome, self._has_asked = outcome, False

    def ask(self, *, has_drawn: bool, least: float = math.inf) -> float | None:
        """Take part in an exchange; return the lowest ``least`` of all ranks, None unless all have drawn and none ends.

        Args:
            has_drawn: whether this rank has its share of a batch.
            least: see ``Said``.

        Raises:
            RankLostError: another rank has failed, has ended or does not answer, or is at another opt step.
            PluginError: the ranks have different models.
        """
        if self.ending is not None:  # The others have ended, or are about to.
            return None
        own = self._measure()
        said = Said(has_drawn, self._outcome, own.opt_steps, own.checksum, least, own.inserted, own.actors)
        self.heard = heard = [Said(*row) for row in self._group.exchange(said, self._show_life)]
        self._has_asked, self._asked_at, self.is_ready = True, time.monotonic(), has_drawn
        self._require_same_agent(heard)
        outcomes = [int(each.outcome) for each in heard]
        if FAILED in outcomes and self._outcome != FAILED:
            raise RankLostError(
                f"rank {self._rank} of {len(heard)}: rank {outcomes.index(FAILED)} has failed; its log says why"
            )
        self.ending = next((outcome for outcome in outcomes if outcome != GOES_ON), None)
        if self.ending is not None or not all(each.has_drawn for each in heard):
            return None
        return min(each.least for each in heard)

    def end(self) -> None:
        """End a turn: say that this rank has not drawn, unless it has taken part in an exchange."""
        if not self._has_asked:
            self.ask(has_drawn=False)

    def answer_while_busy(self) -> None:
        """Answer the others that this rank is busy, about once a second; called often within a long evaluation."""
        if self.ending is None and time.monotonic() - self._asked_at > BUSY_SECONDS:
            self.ask(has_drawn=False)

    @property
    def inserted_elsewhere(self) -> int:
        """Steps ever stored in the shards of the other ranks, by the last exchange."""
        return int(sum(each.inserted for rank, each in enumerate(self.heard) if rank != self._rank))

    def _require_same_agent(self, heard: Sequence[Said]) -> None:
        steps = [int(each.opt_steps) for each in heard]
        if len(set(steps)) > 1:
            raise RankLostError(
                f"rank {self._rank} of {len(heard)}: expected all ranks at the same opt step, found {steps}; an agent "
                "must draw a batch in each opt step"
            )
        if len({each.checksum for each in heard}) > 1:
            raise PluginError(
                f"agent.target: opt step {steps[0]}: expected the same model on all ranks, found different models; "
                "your own agent must take its gradient steps by crossborder.descend, which averages "
                "gradients over ranks. With a shipped agent, the ranks round differently: they need processors or GPUs "
                "of the same kind, and the same release of torch"
            )
