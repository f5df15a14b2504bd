"""One opt step of an agent, in the precision of the run. If it fails, the rows that it had drawn are named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from common.data import Record
from common.errors import RankLostError
from common.interfaces import Agent, ReplayBuffer
from learner.replay.reader import NothingToDrawError

log = logging.getLogger(__name__)


def do_nothing() -> None:
    """Do nothing: the default of a callable that a caller may leave out."""


class OptStep:
    """Takes the opt steps of an agent, and measures the time that they take.

    Args:
        agent: learns.
        buffer: the agent draws from it.
        computing: a context in which each ``opt`` runs, such as a precision.
        explain: when ``opt`` has raised, says which rows it had drawn; None says nothing.
        after: called after each ``opt``, before the agent is scored, saved or published.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        agent: Agent,
        buffer: ReplayBuffer,
        *,
        computing: AbstractContextManager[object] | None = None,
        explain: Callable[[], str] | None = None,
        after: Callable[[], None] = do_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent, self.buffer = agent, buffer
        self._computing, self._explain, self._after, self._clock = computing or nullcontext(), explain, after, clock
        self.seconds = 0.0
        """Seconds that opt steps have taken in this life of the run."""
        self._ended_at: float | None = None

    def seconds_since(self) -> float | None:
        """Seconds since the last opt step ended; None before the first."""
        return None if self._ended_at is None else self._clock() - self._ended_at

    def take(self, number: int) -> Record | None:
        """Take one opt step; return the agent's record, None in the warm-up or if nothing can be drawn yet.

        Args:
            number: of this opt step in the run, from 1.

        Raises:
            Exception: from the agent's ``opt``, with a note that names the rows it had drawn.
        """
        began = self._clock()
        try:
            with self._computing:
                record = self.agent.opt(self.buffer)
        except NothingToDrawError:  # The view needs more rows than the replay holds so far.
            return None
        except RankLostError:  # The rows of the batch are not its cause.
            raise
        except Exception as error:
            if self._explain is not None:
                explanation = self._explain()
                log.error("opt step %d failed (%s: %s): %s", number, type(error).__name__, error, explanation)
                error.add_note(explanation)
            raise
        if record is not None:
            self._after()
            self._ended_at = self._clock()
            self.seconds += self._ended_at - began
        return record
